"""An export's folder holds one policy in one form."""

from pathlib import Path

import pytest
import torch

from tsr_lightning.errors import ConfigError
from tsr_lightning.policy.export_folder import RECORD, Exported, digest


def written(folder: Path, exported: Exported, *names: str) -> set[str]:
    exported.check(folder)
    with exported.written_to(folder) as part:
        for name in names:
            (part / name).write_text(exported.checkpoint)
    return {path.name for path in folder.iterdir()}


def test_the_same_policy_may_be_written_again(tmp_path: Path):
    folder = tmp_path / "above" / "out"
    assert written(folder, Exported("a", "whole", "one.ckpt"), "weights") == {"weights", RECORD}
    (folder / "mine.txt").touch()
    assert written(folder, Exported("a", "whole", "two.ckpt"), "weights") == {"weights", RECORD, "mine.txt"}
    assert Exported.read(folder) == Exported("a", "whole", "two.ckpt")
    assert [path.name for path in folder.parent.iterdir()] == ["out"]


@pytest.mark.parametrize(
    ("exported", "holds"),
    [
        (Exported("b", "whole", "two.ckpt"), "the policy of one.ckpt"),
        (Exported("a", "adapter", "one.ckpt"), "this policy as a whole model"),
    ],
)
def test_another_is_refused(exported: Exported, holds: str, tmp_path: Path):
    written(tmp_path / "out", Exported("a", "whole", "one.ckpt"), "weights")
    remedy = f"output is {tmp_path / 'out'}, which holds {holds}: give another folder, or delete that one first"
    with pytest.raises(ConfigError, match=remedy):
        exported.check(tmp_path / "out")


def test_a_folder_of_other_files_and_a_file_are_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="which holds files of another kind"):
        Exported("a", "whole", "one.ckpt").check(tmp_path)
    with pytest.raises(ConfigError, match="which is no folder"):
        Exported("a", "whole", "one.ckpt").check(tmp_path / "file")


def test_an_export_that_is_cut_changes_nothing(tmp_path: Path):
    exported = Exported("a", "whole", "one.ckpt")
    with pytest.raises(KeyboardInterrupt), exported.written_to(tmp_path / "out") as part:  # noqa: PT012
        (part / "weights").touch()
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_the_digest_tells_values_names_types_and_shapes():
    def of(**state: torch.Tensor) -> str:
        return digest(state)

    one = torch.tensor([[1.0, 2.0]])
    assert of(a=one) == of(a=one.clone())
    others = [of(b=one), of(a=one + 1), of(a=one.bfloat16()), of(a=one.reshape(2)), of(a=one, b=torch.tensor(1.0))]
    assert len({of(a=one), *others}) == 6

"""What a run says at its end."""

from pathlib import Path

from tsr_lightning.training.run_folder import after_fit, after_validation


def test_a_fit_says_where_it_is_and_what_comes_next(tmp_path: Path):
    folder, last = tmp_path / "a run", tmp_path / "a run" / "checkpoints" / "last.ckpt"
    folder.mkdir()
    assert after_fit(folder, None, None) == f"the run is in {folder}"
    (folder / "config.yaml").touch()
    run = f"--config '{folder}/config.yaml' --ckpt_path '{last}'"
    assert after_fit(folder, last, tmp_path).splitlines() == [
        f"the run is in {folder}, its policy in {last}",
        f"  tensorboard --logdir {tmp_path}",
        f"  tsr validate {run}",
        f"  tsr export {run} --output my_policy",
    ]


def test_a_validation_says_where_its_figures_are(tmp_path: Path):
    assert after_validation(tmp_path) is None
    (tmp_path / "evaluation.validate.json").touch()
    assert after_validation(tmp_path) == f"the figures are in {tmp_path}/evaluation.validate.json"

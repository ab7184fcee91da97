"""The shipped configurations are commented and build; an overlay replaces all of its part and nothing else."""

import re
import shlex
from functools import reduce
from itertools import pairwise, permutations
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import QUICK, ROOT, tsr

from tsr_lightning.cli.app import ParsingCLI, resolved_settings
from tsr_lightning.studies.arms import check_arms
from tsr_lightning.studies.grid import read_grid
from tsr_lightning.studies.grid_file import read_yaml
from tsr_lightning.studies.settings import flat_settings

CONFIGS = ROOT / "configs"
FILES = sorted(str(path.relative_to(CONFIGS)) for path in CONFIGS.rglob("*.yaml"))
OF_PRETRAINED = (  # what an overlay of a pretrained model replaces
    *("model.policy", "model.optimizer", "data.env_kwargs.prompt_style", "data.held_out", "data.sampling"),
    *("data.context_tokens", "data.min_valid", "data.updates", "data.engine.init_args.kv_cache_mib"),
)
PRETRAINED = ["model/qwen_lora_nf4.yaml", "model/smollm2.yaml"]
PARTS = {
    "search": ("data.plan", "data.instances"),
    "objective": ("model.objective", "data.dynamic_sampling"),
    "model": ("model.policy",),
    "evaluation": ("data.evaluations",),
    "pretrained": OF_PRETRAINED,
    "credit": ("model.objective.init_args.searched",),
}
COMMON = [name for name in FILES if Path(name).parts[0] == "common"]  # what others extend: no runs by themselves
GRIDS = [name for name in FILES if Path(name).parts[0] == "studies"]


def kind(name: str) -> str:
    """Overlays of one kind replace each other."""
    return "pretrained" if name in PRETRAINED else Path(name).parts[0]


OF_SEVERAL = [name for name in FILES if Path(name).parts[0] == "scale"]  # processes: tests/training/test_sharding.py
OF_EXTRAS = ["reasoning_gym.yaml", "textarena.yaml"]  # packages: tests/worlds/test_gyms.py
OVERLAYS = [name for name in FILES if Path(name).parts[0] in PARTS]
PAIRS = [pair for pair in permutations(OVERLAYS, 2) if kind(pair[0]) == kind(pair[1])]
BASE = "sokoban.yaml"


def flags(*names: str) -> list[str]:
    return [part for name in names for part in ("--config", name)]


def header(name: str) -> str:
    lines = (CONFIGS / name).read_text(encoding="utf-8").splitlines()
    return "\n".join(lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))])


def commands(name: str) -> list[list[str]]:
    """The command lines in the header of a file."""
    return [shlex.split(line) for line in re.findall(r"^# {3}tsr (.*)$", header(name), re.MULTILINE)]


@pytest.mark.parametrize("name", [name for name in FILES if name not in COMMON])
def test_opens_with_its_run_line_and_an_override(name: str):
    first, *others = commands(name)
    assert f"configs/{name}" in first
    assert any(len(other) > len(first) or other[-1] != first[-1] for other in others)
    for command in commands(name):
        for path in re.findall(r"configs/\S+\.yaml", " ".join(command)):
            assert (ROOT / path).is_file()


@pytest.mark.parametrize("name", FILES)
def test_every_key_is_commented(name: str):
    explained = set()
    bare = []
    for line in (CONFIGS / name).read_text(encoding="utf-8").splitlines():
        if key := re.match(r"[\s-]*(\w+): *([^\s#][^#]*)?(# \S.*)?$", line):
            if key[3]:
                explained.add(key[1])
            elif key[2] and key[1] not in explained | {"class_path", "extends"}:
                bare.append(line.strip())
    assert bare == []


@pytest.mark.parametrize("name", COMMON)
def test_what_is_common_is_extended_by_several(name: str):
    assert sum(name in read_yaml(CONFIGS / other).get("extends", []) for other in FILES) > 1


@pytest.mark.parametrize("name", FILES)
def test_no_line_has_two_comments_or_trailing_spaces(name: str):
    for line in (CONFIGS / name).read_text(encoding="utf-8").splitlines():
        assert line == line.rstrip()
        assert len(re.findall(r"(?:^|\s)# ", line)) <= 1, line


# Other tests train with them.
TRAINED = {
    *("sokoban.yaml", "frozen_lake.yaml", "alfworld.yaml", "textworld.yaml", "swe.yaml", "quickstart.yaml"),
    *(f"search/{name}.yaml" for name in ("sample", "best_of_n", "beam", "lookahead", "expert", "adaptive_tree")),
    *("credit/tree.yaml", "credit/imitate.yaml", "model/embedded.yaml", "model/embedded_lora.yaml"),
    *("model/embedded_nf4.yaml", "warm_start/sokoban.yaml", "warm_start/frozen_lake.yaml", "warm_start/form.yaml"),
    *("warm_start/supervised.yaml", "warm_start/split.yaml"),
}


def is_covered(name: str) -> bool:
    """Others train with it; or it is an objective, whose arguments are checked by print_config in other tests here."""
    return name in TRAINED or Path(name).parts[0] == "objective"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.exhaustive if is_covered(name) else [])
        for name in FILES
        if name not in (*COMMON, *GRIDS, *OF_SEVERAL, *OF_EXTRAS)
    ],
)
def test_builds(name: str, tiny_model, empty_folder: Path):
    """With model and callbacks, for a run of zero epochs."""
    files = re.findall(r"configs/(\S+\.yaml)", " ".join(commands(name)[0]))  # those of its first command
    cli = tsr(
        *("fit", *flags(*files), "--model.policy.model", tiny_model("sokoban"), "--trainer.accelerator", "cpu"),
        *("--trainer.max_epochs", "0", "--trainer.num_sanity_val_steps", "0"),
        *("--data.instances", "1", "--data.held_out.instances", "1"),
    )
    assert cli.model.policy is not None
    assert cli.trainer.global_step == 0


@pytest.fixture(scope="module")
def resolve():
    """The output of `tsr fit --config … --print_config`, cached by the list of files."""
    known: dict[tuple[str, ...], str] = {}

    def ask(capsys: pytest.CaptureFixture[str], *names: str) -> str:
        if names not in known:
            with pytest.raises(SystemExit) as ended:
                tsr("fit", *flags(*names), "--print_config")
            assert ended.value.code == 0
            known[names] = capsys.readouterr().out
        return known[names]

    return ask


ONE_OF_EACH_KIND = [  # since each sets every key of its part; the others are exhaustive
    pytest.param(name, marks=[] if kind(name) != kind(before) else pytest.mark.exhaustive)
    for before, name in pairwise(["none", *OVERLAYS])
]


@pytest.mark.parametrize("last", ONE_OF_EACH_KIND)
def test_an_overlay_replaces_all_others_of_its_kind(last: str, resolve, capsys, empty_folder):
    others = [name for name in OVERLAYS if kind(name) == kind(last) and name != last]
    assert resolve(capsys, BASE, *others, last) == resolve(capsys, BASE, last)


@pytest.mark.exhaustive
@pytest.mark.parametrize(("first", "second"), PAIRS, ids=map(" then ".join, PAIRS))
def test_an_overlay_replaces_any_other_of_its_kind(first: str, second: str, resolve, capsys, empty_folder):
    assert resolve(capsys, BASE, first, second) == resolve(capsys, BASE, second)


@pytest.mark.parametrize(  # an arm takes a second and a half
    "name",
    [pytest.param(name, marks=() if name == "studies/quickstart.yaml" else pytest.mark.exhaustive) for name in GRIDS],
)
def test_every_arm_of_a_grid_is_a_run_that_tsr_would_take(
    name: str, empty_folder: Path, request: pytest.FixtureRequest
):
    for model in set(re.findall(r"models/(\w+)", (CONFIGS / name).read_text()) + ["smollm2"] * ("llm" in name)):
        (empty_folder / "models").mkdir(exist_ok=True)  # one of the same kind stands for those that a run makes
        (empty_folder / "models" / model).symlink_to(request.getfixturevalue("smollm2"))
    grid = read_grid(CONFIGS / name)
    assert check_arms(grid, resolved_settings).keys() == {arm.name for arm in grid.arms}


OF_THE_STUDY = {"trainer.accelerator", "trainer.check_val_every_n_epoch"}  # what a study sets and a user need not
LEVELS = {"data.env_kwargs.min_solution", "data.env_kwargs.difficulty.look_alikes", "data.env_kwargs.max_turns"}


@pytest.mark.parametrize(
    ("task", "arm"),
    [("sokoban", "rare-ppo-imitate"), ("frozen_lake", "first-improvement"), ("webshop", "crowded-imitate")],
)
def test_tuned_settings_are_those_of_the_study(task: str, arm: str, empty_folder: Path):
    """So that a user's run learns as docs/results.md says, on whatever levels."""
    command = commands(f"tuned/{task}.yaml")[0]
    stated = flat_settings(resolved_settings(command[1:], ParsingCLI))  # `test_builds` checks them
    grid = read_grid(CONFIGS / f"studies/{task}_search.yaml")
    studied = flat_settings(resolved_settings(next(one for one in grid.arms if one.name == arm).flags(), ParsingCLI))
    differing = {key for key in stated.keys() | studied.keys() if stated.get(key) != studied.get(key)}
    assert differing <= OF_THE_STUDY | LEVELS


def part(config: dict[str, Any], name: str) -> dict[str, Any]:
    """What a configuration says of the part that an overlay replaces, which is removed from it."""
    found = {}
    for key in PARTS[kind(name)]:
        *above, last = key.split(".")
        found[key] = reduce(getitem, above, config).pop(last)
    return found


# They set what other tasks leave at its default.
WHOLE = ("paper/sokoban.yaml", pytest.param("quickstart_llm.yaml", marks=pytest.mark.exhaustive))


@pytest.mark.parametrize("base", WHOLE)
@pytest.mark.parametrize("name", ONE_OF_EACH_KIND)
def test_an_overlay_says_the_same_over_any_task(name: str, base: str, resolve, capsys, empty_folder):
    """It names the class that it replaces, or states every key that a task may have set."""
    laid, elsewhere = (yaml.safe_load(resolve(capsys, task, name)) for task in (BASE, base))
    assert part(elsewhere, name) == part(laid, name)


@pytest.mark.parametrize("name", OVERLAYS)
def test_an_overlay_changes_its_own_part_alone(name: str, resolve, capsys, empty_folder):
    base, laid = (yaml.safe_load(resolve(capsys, *names)) for names in ([BASE], [BASE, name]))
    part(base, name), part(laid, name)
    assert base == laid


# Every search once, and every objective on both tasks; the other combinations are exhaustive.
TOGETHER = [
    pytest.param(search, objective, task, marks=[] if (j, k) == (i % 2, i // 2) else pytest.mark.exhaustive)
    for i, search in enumerate(("sample", "best_of_n", "beam", "lookahead"))
    for j, objective in enumerate(("ppo", "grpo"))
    for k, task in enumerate(("sokoban", "frozen_lake"))
]


@pytest.mark.parametrize(("search", "objective", "task"), TOGETHER)
def test_every_search_trains_with_every_objective(search: str, objective: str, task: str, tiny_model, empty_folder):
    overlays = flags(f"{task}.yaml", f"search/{search}.yaml", f"objective/{objective}.yaml")
    # One update per rollout, so that the last figures are those of all of it; no entropy bonus, whose gradient would
    # hide that the objective has none.
    cli = tsr(
        *("fit", *overlays, *QUICK, "--model.policy.model", tiny_model(task), "--trainer.max_epochs", "1"),
        *("--data.instances", "8", "--data.plan.init_args.count", "8", "--data.updates.minibatches", "1"),
        *("--model.objective.init_args.entropy_coefficient", "0"),
    )
    metrics = cli.trainer.callback_metrics
    assert cli.trainer.global_step == 1
    assert metrics["train/policy_weight"] > 0
    assert metrics["train/grad_norm_policy"] > 1e-4
    assert ("train/grad_norm_critic" in metrics) == (objective == "ppo")
    if objective == "ppo":
        assert metrics["train/grad_norm_critic"] > 1e-4

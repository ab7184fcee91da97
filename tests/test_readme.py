"""What the README and docs/ show is true: their examples run, and their commands and YAML blocks are taken.

An example of docs/extend.md is written where a user would put it, and the command below it is run. Every other command
of a run is parsed and its objects built, as `tsr` does before a model loads, and those that need nothing of the user's
are checked as it does (exhaustive).
"""

import re
import shlex
import tomllib
from dataclasses import asdict
from functools import cache
from importlib import import_module, util
from pathlib import Path
from typing import Any

import pytest
import yaml
from commands import QUICK, ROOT, in_folder, tsr
from jsonargparse import ArgumentParser, Namespace

from tsr_lightning.cli import app
from tsr_lightning.cli.config_files import config_path
from tsr_lightning.cli.overlays import as_overlays
from tsr_lightning.cli.ray.options import parse as without_ray
from tsr_lightning.cli.subcommands import PLAIN
from tsr_lightning.rollout.instances import HeldOut
from tsr_lightning.studies.grid import read_grid

MADE = ROOT / "docs" / "reference"  # by make docs
PAGES = [ROOT / "README.md", *sorted(path for path in (ROOT / "docs").rglob("*.md") if MADE not in path.parents)]
README, EXTEND = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "docs/extend.md"))
TEXTS = {path: path.read_text(encoding="utf-8") for path in PAGES}
BLOCKS = [
    (path, *block) for path, text in TEXTS.items() for block in re.findall(r"^```(\w*)\n(.*?)^```$", text, re.M | re.S)
]
OWN_FILES = dict(  # of a user, as a page shows them
    re.findall(r"here `(\w+\.yaml)`.*?```yaml\n(.*?)^```$", "\n".join(TEXTS.values()), re.M | re.S)
)
EXAMPLES = re.findall(r"```python\n# (\w+\.py)\n(.*?)```\n\n```\ntsr (.*?)\n```", EXTEND, re.DOTALL)
# For fewer epochs than the example has, in both of its phases.
SHORTER = {
    "largest.py": ("--data.plan.init_args.epochs", "[1]", "--trainer.max_epochs", "2"),
    **dict.fromkeys(("guess.py", "clerk.py", "safe.py"), ("--trainer.max_epochs", "2")),
}


def command_lines() -> set[str]:
    """Those of blocks and in code font, without the examples that are run and those with a place to fill in."""
    lines = [line for _, language, text in BLOCKS if not language for line in text.replace("\\\n", " ").splitlines()]
    inline = re.findall(r"(?<!`)`((?:tsr|tsr-ray|make|pip|python -m)\s[^`]+)`(?!`)", "\n".join(TEXTS.values()))
    found = set()
    for line in (*lines, *inline):
        start = re.match(
            r"(?:for .*? do |torchrun .*? -m )?((?:tsr|tsr_lightning|tsr-ray|make|pip|python -m) .*)", line, re.S
        )
        command = re.sub(r" +#.*|; done.*", "", " ".join(start[1].split())) if start else ""
        to_fill_in = re.search(r"\.\.\.|…| [A-Z]+\b", command)
        if command and not to_fill_in and command.removeprefix("tsr ") not in [run for _, _, run in EXAMPLES]:
            found.add(command.replace("$run/config.yaml", "configs/sokoban.yaml"))
    return found


COMMANDS = sorted(command_lines())
SUBCOMMANDS = "fit|validate|rollout|export|estimate|probe"
A_RUN = rf"(?:tsr |tsr_lightning |tsr-ray |python -m benchmarks\.)({SUBCOMMANDS}) (.*--config.*)"
REQUIRED = {"rollout": ("--output", "new"), "export": ("--ckpt_path", "last.ckpt", "--output", "new")}
RUNS = [(command, *found.groups()) for command in COMMANDS if (found := re.fullmatch(A_RUN, command))]
# What lies on a user's disk, in packages that are not installed, or takes minutes to make.
OF_OTHERS = r"\$|path/|runs/|beam\.jsonl|VLLM|Wandb|MLFlow|smollm2|fsdp2|textworld-w2"


@cache
def parser_of(subcommand: str) -> ArgumentParser:
    some = [subcommand, "--config", "sokoban.yaml", *REQUIRED.get(subcommand, ())]
    return app.run(some, app.ParsingCLI)._parser(subcommand)


def built(subcommand: str, flags: list[str]) -> Namespace:
    """The configuration of a run, with the objects that it names but for loggers, whose packages are the user's."""
    with in_folder(ROOT):
        shipped = [
            str(config_path(flag) or flag) if flag.endswith(".yaml") and not Path(flag).exists() else flag
            for flag in flags
        ]
        own = [OWN_FILES.get(flag, flag) for flag in shipped]
        config = parser_of(subcommand).parse_args(as_overlays(own))
        config["trainer"]["logger"] = None
        return parser_of(subcommand).instantiate_classes(config)


def flags_of(subcommand: str, rest: str) -> list[str]:
    """The flags of a run, without those of `tsr-ray`, `tsr estimate` and benchmarks.estimate."""
    flags = [flag for flag in without_ray(shlex.split(rest))[1] if flag != "--tiny"]
    return plain_parser(subcommand).parse_known_args(flags)[1] if subcommand in PLAIN else flags


def plain_parser(subcommand: str) -> ArgumentParser:
    return import_module(f"tsr_lightning.cli.{subcommand.replace('-', '_')}").make_parser()


def has_flags(rest: str) -> bool:
    """Whether more than layers is given, each of which tests/cli/test_configs.py parses."""
    return re.fullmatch(r"(--config \S+\s?)*", rest) is None


@pytest.mark.parametrize(
    ("subcommand", "rest"),
    [pytest.param(*run[1:], id=run[0], marks=[] if has_flags(run[2]) else pytest.mark.exhaustive) for run in RUNS],
)
def test_a_run_is_parsed_and_its_objects_built(subcommand: str, rest: str):
    config = built("fit" if subcommand in PLAIN else subcommand, flags_of(subcommand, rest))
    assert config["model"].objective is not None
    assert config["data"].plan is not None


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("subcommand", "rest"),
    [run[1:] for run in RUNS if run[1] not in PLAIN and not re.search(OF_OTHERS, run[0])],
)
def test_a_run_passes_all_checks_before_a_model_loads(subcommand: str, rest: str):
    with in_folder(ROOT):
        assert app.run([subcommand, *flags_of(subcommand, rest)], app.CheckingCLI).trainer is not None


@pytest.mark.parametrize("command", [line for line in COMMANDS if line not in [run[0] for run in RUNS]])
def test_a_command_is_one_that_its_program_takes(command: str):
    program, *words = shlex.split(command)
    if program == "tsr" and words[0] in PLAIN and len(words) > 1:
        given = plain_parser(words[0]).parse_args(words[1:])
        if words[0] == "study":
            read_grid(ROOT / given.grid)
            assert given.packed is None or (ROOT / given.packed).is_file()
    elif program in ("tsr", "tsr-ray"):
        assert words[0] in (*PLAIN, *app.TSRCLI.subcommands(), "--version")
    elif program == "make":
        assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE)
        extras = "".join(words[1:]).removeprefix("EXTRAS=").split()
        assert [name for name in extras if not (ROOT / "tests" / "extras" / f"{name}.txt").is_file()] == []
    elif program == "pip":
        declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
        assert {*re.findall(r"\[(.*)\]", command)} <= {*declared}
    else:
        source = Path(util.find_spec(words[1]).origin)
        files = source.parent.glob("*.py") if source.stem == "__init__" else [source]
        texts = "".join(path.read_text(encoding="utf-8") for path in files)
        assert [word for word in words[2:] if word.startswith("--") and f'"{word}"' not in texts] == []


def test_the_yaml_blocks_are_taken(tmp_path: Path):
    blocks = [text for _, language, text in BLOCKS if language == "yaml"]
    assert len(blocks) == 5
    for text in blocks:
        file = tmp_path / "block.yaml"
        file.write_text(text, encoding="utf-8")
        if text in OWN_FILES.values():
            flags = ["--config", str(file), "--config", "model/smollm2.yaml"]
            assert built("fit", flags)["data"].held_out.instances == 64
        elif text.startswith("data:"):
            assert built("fit", ["--config", "sokoban.yaml", "--config", str(file)])["data"] is not None
        else:
            mine = tmp_path / "mine.yaml"
            mine.write_text("trainer: {max_epochs: 3}\n", encoding="utf-8")
            [last] = [arm for arm in read_grid(file).arms if arm.name == "ppo-longer"]
            flags = [part for flag in last.flags() for part in flag.split("=", 1)]
            built("fit", [str(mine) if part == "mine.yaml" else part for part in flags])


def test_there_is_an_example_of_each_kind():
    assert [name for name, _, _ in EXAMPLES] == [
        "guess.py",
        "clerk.py",
        "safe.py",
        "largest.py",
        "stubborn.py",
        "valid_actions.py",
        "median.py",
        "equal_turns.py",
        "plain_engine.py",
        "skip_solved.py",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("name", "source", "command"), EXAMPLES, ids=[name for name, _, _ in EXAMPLES])
def test_an_example_trains(name: str, source: str, command: str, tmp_path: Path):
    (tmp_path / name).write_text(source, encoding="utf-8")
    subcommand, config, task, *flags = shlex.split(command)
    quick = (*QUICK[:-2], "--trainer.max_epochs", "1")  # before the example's own flags, which stand
    with in_folder(tmp_path):
        cli = tsr(subcommand, config, task, *quick, *flags, *SHORTER.get(name, ()))
    assert cli.trainer.global_step > 0
    assert cli.trainer.callback_metrics["train/grad_norm_policy"] > 0
    assert name.removesuffix(".py") in str(cli.config)


@pytest.mark.slow
def test_the_python_example_trains(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    [source] = re.findall(r"```python\n(import tsr_lightning .*?)```", README, re.DOTALL)
    quick = source.replace("max_epochs=40", "max_epochs=1").replace("instances=64", "instances=4")
    quick = quick.replace("samples=4", "samples=1")
    assert quick.count("max_epochs=1,") == quick.count("instances=4") == quick.count("samples=1") == 1
    names: dict[str, object] = {}
    with in_folder(tmp_path):
        exec(compile(quick, "README.md", "exec"), names)
    assert names["trainer"].global_step > 0
    rates = re.findall(r"^(before|after ) sampled: success rate (\S+) \[", capsys.readouterr().out, re.MULTILINE)
    assert [when for when, _ in rates] == ["before", "after "]
    assert rates[0][1] != rates[1][1]


def test_the_python_of_a_pretrained_model_sets_what_its_layer_sets():
    """All but the last line, which would train it."""
    page = (ROOT / "docs" / "real_models.md").read_text(encoding="utf-8")
    [source] = re.findall(r"```python\n(import tsr_lightning .*?)```", page, re.DOTALL)
    *built, trains = source.strip().splitlines()
    assert trains.endswith(".fit(agent, data)")
    names: dict[str, Any] = {}
    exec(compile("\n".join(built), "real_models.md", "exec"), names)
    layer = yaml.safe_load((ROOT / "configs" / "model" / "smollm2.yaml").read_text(encoding="utf-8"))
    shared = yaml.safe_load((ROOT / "configs" / "common" / "pretrained.yaml").read_text(encoding="utf-8"))
    common = shared["data"]
    adapter, data = names["spec"].adapter, names["data"]
    assert {"rank": adapter.rank, "alpha": adapter.alpha} == {
        key: layer["model"]["policy"]["adapter"][key] for key in ("rank", "alpha")
    }
    assert names["agent"].optimizer.learning_rate == layer["model"]["optimizer"]["learning_rate"]
    assert names["agent"].optimizer.warmup_updates == shared["model"]["optimizer"]["warmup_updates"]
    assert data.held_out == HeldOut(**common["held_out"])
    assert data.min_valid == common["min_valid"]
    assert data.context_tokens == common["context_tokens"]
    assert data.sampling.max_response_tokens == common["sampling"]["max_response_tokens"]
    updates = asdict(data.updates)
    assert {key: updates[key] for key in ("minibatches", "min_trajectories", "target_kl")} == {
        key: common["updates"][key] for key in ("minibatches", "min_trajectories", "target_kl")
    }


def test_every_file_exists_that_a_page_a_message_or_a_configuration_names():
    rooms = ("tsr_lightning", "callbacks", "configs")
    sources = [path for name in rooms for kind in ("py", "yaml", "md") for path in (ROOT / name).rglob(f"*.{kind}")]
    found = r"(?<![\w/.])(?:configs|docs|examples|benchmarks|tsr_lightning|callbacks)/[\w./-]+\.(?:yaml|md|png|py)\b"
    missing = []
    for path in (*PAGES, *sources):
        names = set(re.findall(found, path.read_text(encoding="utf-8")))
        missing += [
            f"{path.relative_to(ROOT)}: {name}"
            for name in sorted(names - {"docs/results/NAME.yaml"})
            if not any((base / name).is_file() for base in (ROOT, path.parent))
        ]
    assert missing == []

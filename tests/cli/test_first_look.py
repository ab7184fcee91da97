"""Help, versions and most mistakes of a command line are answered before PyTorch is imported."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT

from tsr_lightning.cli.app import TSRCLI
from tsr_lightning.cli.first_look import look, versions
from tsr_lightning.cli.subcommands import ALL, RUNS
from tsr_lightning.cli.suggestions import closest, suggestion
from tsr_lightning.errors import ConfigError
from tsr_lightning.training.trainer import Trainer

BEAM = ("--config", "search/beam.yaml")
SOKOBAN = ("--config", "sokoban.yaml")
FILES = {
    "empty.yaml": "# nothing\n",
    "list.yaml": "- 3\n",
    "folder.yaml/inner": "",
    "bad.yaml": "data:\n  instances: [3\n",
    "few.yaml": "data: {instances: 3}",
    "same.yaml": "trainer: {max_epochs: 60}",
    "size.yaml": "data: {env_kwargs: {size: 5}}",
    "other.yaml": "data: {env: 'corridor:Corridor-v0'}",
    "mine.yaml": "extends: [sokoban.yaml]\ndata: {instances: 3}",
    "lost.yaml": "extends: [few.yaml, sokobann.yaml]",
    "text.yaml": "extends: sokoban.yaml",
    "there.yaml": "extends: [back.yaml]",
    "back.yaml": "extends: [there.yaml]",
}
REFUSED = {
    "nothing": ((), r"no subcommand was given: use tsr fit, .*tsr import-gguf, or tsr --help"),
    "flags alone": (SOKOBAN, r"no subcommand was given"),
    "misspelt subcommand": (("fitt",), r"fitt is no subcommand: did you mean fit\?"),
    "file for a subcommand": (("quickstart.yaml",), r"no subcommand: did you mean tsr fit --config quickstart\.yaml\?"),
    "file without a flag": (
        ("validate", "quickstart.yaml"),
        r"quickstart\.yaml stands without a flag: did you mean tsr validate --config quickstart\.yaml\?",
    ),
    "key without dashes": (
        ("fit", *SOKOBAN, "trainer.max_epochs=3"),
        r"max_epochs=3 has no dashes: did you mean --trainer\.max_epochs=3\?",
    ),
    "word": (("fit", *SOKOBAN, "--data.instances", "3", "4"), r"4 belongs to no flag: write --key value"),
    "name without its ending": (("fit", "--config", "sokoban"), r"sokoban, .*did you mean sokoban\.yaml\?"),
    "name without its folder": (("fit", "--config=beam.yaml"), r"beam\.yaml, .*did you mean search/beam\.yaml\?"),
    "unknown file": (("fit", "-c", "zzz.yaml"), r"zzz\.yaml, .*none that is shipped: give a path, or the name of"),
    "empty file": (
        ("fit", *SOKOBAN, "--config", "empty.yaml"),
        r"--config is empty\.yaml, which is empty: give it keys",
    ),
    "list": (("fit", *SOKOBAN, "--config", "list.yaml"), r"--config is list\.yaml, which is no mapping of keys: write"),
    "folder": (("fit", "--config", "folder.yaml"), r"folder\.yaml, which cannot be read \(Is a directory\): give"),
    "invalid YAML": (("fit", *SOKOBAN, "--config", "bad.yaml"), r"is bad\.yaml, which is no valid YAML: .*at line 2"),
    "base that is not there": (
        ("fit", "--config", "lost.yaml"),
        r"--config lost\.yaml extends sokobann\.yaml: --config is sokobann\.yaml, .*did you mean sokoban\.yaml\?",
    ),
    "base that is no list": (
        ("fit", "--config", "text.yaml"),
        r"extends is 'sokoban\.yaml' in text\.yaml: give a list",
    ),
    "circle": (("fit", "--config", "there.yaml"), r"back\.yaml extends there\.yaml, which extends it: name each"),
    "overlay before what extends its task": (
        ("fit", *BEAM, "--config", "mine.yaml"),
        r"mine\.yaml, which names the env",
    ),
    "overlay before its task": (
        ("fit", *BEAM, *SOKOBAN),
        r"--config search/beam\.yaml comes before --config sokoban\.yaml, which names the environment and replaces its "
        r"data\.instances: give --config sokoban\.yaml --config search/beam\.yaml",
    ),
    "overlay before its model": (
        ("fit", *SOKOBAN, "--config", "warm_start/form.yaml", "--config", "model/smollm2.yaml"),
        r"--config warm_start/form\.yaml comes before --config model/smollm2\.yaml, which names the model and replaces "
        r"its model\.optimizer\.warmup_updates: give --config model/smollm2\.yaml --config warm_start/form\.yaml",
    ),
    "arguments before their task": (
        ("fit", "--config", "size.yaml", *SOKOBAN),
        r"size\.yaml comes before .*replaces its data\.env_kwargs\.size",
    ),
    "overlay between two tasks": (("fit", *SOKOBAN, "--config", "few.yaml", "--config", "webshop.yaml"), r"few\.yaml"),
    "flag before its task": (
        ("fit", "--trainer.max_epochs", "3", *SOKOBAN),
        r"--trainer\.max_epochs 3 comes before --config sokoban\.yaml, which replaces it: give it after that file",
    ),
    "key of no element of a list": (
        ("fit", *SOKOBAN, "--data.evaluations.samples", "8"),
        r"--data\.evaluations\.samples 8 names no element of data\.evaluations, which is a list of 2: give the whole",
    ),
    "key of one element of a list": (("fit", *SOKOBAN, "--data.evaluations.0.samples", "8"), r"names no element of"),
}
ACCEPTED = {
    "a task and overlays": (*SOKOBAN, *BEAM, "--config", "objective/ppo.yaml"),
    "an overlay of the same values first": ("--config", "same.yaml", *SOKOBAN),
    "the same value first": ("--trainer.max_epochs", "60", *SOKOBAN),
    "a file that names an environment and replaces nothing": (*SOKOBAN, *BEAM, "--config", "other.yaml"),
    "a model over a search, of which it replaces nothing": (*SOKOBAN, *BEAM, "--config", "model/smollm2.yaml"),
    "a model over a model": (*SOKOBAN, "--config", "model/smollm2.yaml", "--config", "model/qwen_lora_nf4.yaml"),
    "a task over a task": (*SOKOBAN, "--config", "webshop.yaml"),
    "YAML itself": (*SOKOBAN, "--config", "{data: {instances: 3}}"),
    "a negative number": (*SOKOBAN, "--trainer.max_steps", "-1"),
    "the element that a flag appends": (
        *(*SOKOBAN, "--trainer.callbacks+", "EarlyStopping"),
        *("--trainer.callbacks.monitor", "val/greedy/success_rate"),
    ),
    "the element that a flag gives": (*SOKOBAN, "--trainer.callbacks=EarlyStopping", "--trainer.callbacks.patience=3"),
    "flags without a value": (*SOKOBAN, "--print_config"),
}


@pytest.fixture
def files(empty_folder: Path) -> None:
    for name, text in FILES.items():
        (empty_folder / name).parent.mkdir(exist_ok=True)
        (empty_folder / name).write_text(text)


@pytest.mark.parametrize("name", REFUSED)
def test_refused_with_one_sentence(name: str, files: None) -> None:
    args, pattern = REFUSED[name]
    with pytest.raises(ConfigError) as raised:
        look(args)
    assert re.search(pattern, str(raised.value))
    assert len(str(raised.value)) < 300


@pytest.mark.parametrize("name", ACCEPTED)
def test_accepted(name: str, files: None) -> None:
    look(("fit", *ACCEPTED[name]))


@pytest.mark.parametrize(
    ("args", "status", "said"),
    [
        (("--help",), 0, "import-gguf"),
        (("--version",), 0, "Python"),
        (("report", "--help"), 0, "--baseline"),
        (("study", "--help"), 0, "--jobs"),
        (("import-gguf", "--help"), 0, "FOLDER"),
        (("fit", "sokoban"), 2, "--config sokoban"),
    ],
)
def test_is_told_without_pytorch(args: tuple[str, ...], status: int, said: str) -> None:
    code = (
        "import atexit, sys\n"
        "atexit.register(lambda: print(*{'torch', 'lightning', 'transformers'} & set(sys.modules)))\n"
        "from tsr_lightning.__main__ import main; main()"
    )
    run = subprocess.run([sys.executable, "-c", code, *args], cwd=ROOT, capture_output=True, text=True)
    assert run.returncode == status
    assert said in run.stdout + run.stderr
    assert run.stdout.splitlines()[-1] == ""


def test_versions_name_this_package_and_pytorch() -> None:
    assert re.match(r"tsr \d+\.\d+\.\d+, Python 3\.\d+\.\d+, torch \d", versions())


def test_sentences_of_the_runs_are_those_of_the_trainer() -> None:
    for name, sentence in RUNS.items():
        assert " ".join((getattr(Trainer, name).__doc__ or "").split("\n\n")[0].split()) == sentence
    assert set(TSRCLI.subcommands()) == set(RUNS)
    assert set(RUNS) < set(ALL)


@pytest.mark.parametrize(
    ("given", "known", "meant"),
    [
        ("ppo", ["GRPO", "PPO"], "PPO"),
        ("PPPO", ["GRPO", "PPO"], "PPO"),
        ("max_ep", ["max_epochs", "min_epochs"], "max_epochs"),
        ("zzz", ["PPO"], None),
    ],
)
def test_the_closest_name(given: str, known: list[str], meant: str | None) -> None:
    assert closest(given, known) == meant


def test_names_of_other_libraries_are_known() -> None:
    keys = ("model.optimizer.learning_rate", "trainer.max_epochs", "data.updates.epochs")
    assert suggestion("lr", keys, "--") == "did you mean --model.optimizer.learning_rate?"
    assert suggestion("epochs", keys, "--") == "did you mean --trainer.max_epochs?"

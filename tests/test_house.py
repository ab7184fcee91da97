"""Holds the architecture: which room may import which."""

import ast
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks import architecture

ROOT = Path(__file__).resolve().parent.parent

COMMON = architecture.COMMON
# What a room may import besides itself: a room, or one module of it as room.module. Imports inside functions count.
MAY_IMPORT: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(COMMON, ()),
    "envs": COMMON,
    "worlds": (*COMMON, "envs"),
    "modeling": ("errors", "free_memory"),
    "episodes": COMMON,
    "batching": (*COMMON, "modeling"),
    "policy": (*COMMON, "modeling", "batching"),
    "engines": (*COMMON, "modeling"),
    "search": (
        *COMMON,
        "envs.base",
        "envs.boundary",
        "envs.retried",
        "envs.outcome",
        "envs.random_play",
        "envs.waiting",
        "engines.base",
    ),
    "objectives": (*COMMON, "batching"),
    "rollout": (*COMMON, "episodes", "envs", "policy", "engines", "search", "objectives.base", "objectives.signal"),
    "training": (
        *COMMON,
        "episodes",
        "envs",
        "modeling",
        "batching",
        "policy",
        "engines",
        "search",
        "objectives",
        "rollout",
    ),
    "outward": (*COMMON, "envs", "policy.offer"),
    "estimate": (*COMMON, "envs", "modeling", "batching", "policy", "engines", "search"),
    "probe": (*COMMON, "envs", "batching", "policy", "engines", "search", "objectives", "rollout", "training"),
    "studies": ("durations", "errors", "files", "rng", "signals", "statistics", "unique_keys"),
    "cli": (
        *COMMON,
        "episodes",
        "studies",
        "estimate",
        "envs",
        "modeling",
        "batching",
        "policy",
        "engines",
        "search",
        "objectives",
        "rollout",
        "training",
        "probe",
    ),
    "callbacks": (
        *COMMON,
        "episodes",
        "rollout",
        "search.progress",
        "training",
        "batching",
        "objectives.base",
        "objectives.signal",
    ),
    "__main__": ("cli", "signals"),
}
# Libraries that a room may not import.
FOREIGN: Mapping[str, set[str]] = {
    "envs": {"torch", "lightning", "transformers", "tokenizers", "peft"},
    "worlds": {"torch", "lightning", "transformers", "tokenizers", "peft"},
    "search": {"torch", "lightning", "transformers", "tokenizers", "peft"},
    "batching": {"lightning", "transformers", "tokenizers", "peft"},
    "objectives": {"lightning", "transformers", "tokenizers", "peft"},
    "engines": {"lightning", "tokenizers", "peft"},
    "modeling": {"lightning", "tokenizers", "peft"},
    "policy": {"lightning"},
    "rollout": {"lightning"},
    "estimate": {"lightning", "peft"},
    "episodes": {"torch", "lightning", "transformers", "tokenizers", "peft"},
    "studies": {"torch", "lightning", "transformers", "tokenizers", "peft"},
}


def forbidden_imports(root: Path) -> list[str]:
    """`importer -> imported` for every import that MAY_IMPORT does not allow."""
    found = []
    for importer, imported in architecture.imports(root):
        here, there = architecture.room(importer), architecture.room(imported)
        module = imported.removeprefix("tsr_lightning.")
        allowed = (here, *MAY_IMPORT.get(here, ()))
        if importer != "tsr_lightning" and not any(f"{module}.".startswith(f"{name}.") for name in allowed):
            found.append(f"{importer} -> {imported}")
        elif there not in (*MAY_IMPORT, ""):
            found.append(f"{imported} is in no room")
    return sorted(set(found))


def test_rooms_import_only_what_they_may():
    assert forbidden_imports(ROOT) == []


def test_every_room_is_in_the_table_and_in_the_drawing():
    rooms = {architecture.room(name) for name in architecture.modules()} - {""}
    assert rooms == set(MAY_IMPORT)
    assert rooms - {*COMMON, "__main__"} == set(architecture.ROOMS)


# Allowed all the same: imported in a function that no process of an environment calls.
LATE = "tsr_lightning.envs.tools: transformers.utils."


@pytest.mark.parametrize("room", FOREIGN)
def test_rooms_do_not_import_foreign_libraries(room: str):
    found = [
        f"{importer}: {name}"
        for importer, path in architecture.modules().items()
        if architecture.room(importer) == room
        for name in architecture.imported_names(path, importer)
        if name.partition(".")[0] in FOREIGN[room]
    ]
    assert [name for name in found if not name.startswith(LATE)] == []


def test_rooms_form_no_cycle():
    graph = architecture.arrows()
    assert [room for room in graph if room in architecture.reachable(graph, room)] == []


@pytest.mark.parametrize("room", architecture.ROOMS)
def test_files_of_a_room_form_no_circle(room: str):
    assert architecture.files_in_circles(room) == []


@pytest.mark.slow
def test_rollouts_need_no_lightning():
    """Every file of the room, and the loop of the page, are imported by a process of its own that has never seen
    Lightning."""
    files = [name for name in architecture.modules() if architecture.room(name) == "rollout"]
    assert "tsr_lightning.rollout.actor" in files
    found = 'print(*(name for name in sys.modules if name.partition(".")[0] in ("lightning", "pytorch_lightning")))'
    program = "; ".join(["import sys", *(f"import {name}" for name in [*files, "examples.loop"]), found])
    process = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert process.stdout.split() == []


def test_the_drawing_in_the_docs_is_that_of_the_imports():
    page = architecture.PAGE.read_text(encoding="utf-8")
    drawn = page.partition(architecture.BEGIN)[2].partition(architecture.END)[0]
    assert drawn.strip() == architecture.drawing().strip(), "draw it anew with python -m benchmarks.architecture"


def definitions(path: Path) -> set[str]:
    """The functions and classes of a file, and their methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{member.name}" for member in node.body if isinstance(member, ast.FunctionDef)}
    return found


def test_every_function_that_the_architecture_page_names_exists():
    named = re.findall(r"`([\w/]+\.py): ([\w.]+)`", architecture.PAGE.read_text(encoding="utf-8"))
    assert len(named) > 20
    missing = []
    for file, name in named:
        [path] = [path for folder in (ROOT, ROOT / "tsr_lightning") if (path := folder / file).is_file()] or [
            ROOT / file
        ]
        if not path.is_file() or name not in definitions(path):
            missing.append(f"{file}: {name}")
    assert missing == []


def test_parallel_workers_keep_a_group_together(request: pytest.FixtureRequest):
    """pytest-xdist reads the group from a test's id. Where it is not there, each worker makes all that tests share."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("only of parallel workers with --dist loadgroup")
    assert request.node.nodeid.endswith("@test_house")


class TestTheImportChecker:
    """On a small tree of packages."""

    @pytest.fixture
    def tree(self, tmp_path: Path) -> Path:
        for name in ("envs/base", "envs/text", "search/tree", "search/nested/deep", "training/agent", "rng"):
            path = tmp_path / "tsr_lightning" / f"{name}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("import math\n")
        (tmp_path / "callbacks").mkdir()
        (tmp_path / "callbacks" / "mine.py").write_text("from tsr_lightning.training import agent\n")
        (tmp_path / "tsr_lightning" / "search" / "driver.py").write_text("from tsr_lightning.envs.base import Env\n")
        return tmp_path

    def test_allowed_imports_pass(self, tree: Path):
        assert forbidden_imports(tree) == []

    def test_a_circle_of_files_is_found(self, tree: Path):
        assert architecture.files_in_circles("envs", tree) == []
        (tree / "tsr_lightning/envs/text.py").write_text("from tsr_lightning.envs.base import Env\n")
        (tree / "tsr_lightning/envs/base.py").write_text("def f():\n    from tsr_lightning.envs import text\n")
        assert architecture.files_in_circles("envs", tree) == ["tsr_lightning.envs.base", "tsr_lightning.envs.text"]

    @pytest.mark.parametrize(
        ("file", "line", "imported"),
        [
            ("tsr_lightning/envs/text.py", "from tsr_lightning.search.tree import Node", "tsr_lightning.search.tree"),
            ("tsr_lightning/envs/text.py", "from tsr_lightning.search import tree", "tsr_lightning.search.tree"),
            ("tsr_lightning/envs/text.py", "import tsr_lightning.search.tree", "tsr_lightning.search.tree"),
            ("tsr_lightning/envs/text.py", "from ..search.tree import Node", "tsr_lightning.search.tree"),
            ("tsr_lightning/envs/text.py", "from .. import search", "tsr_lightning"),
            ("tsr_lightning/search/tree.py", "from tsr_lightning.envs.text import cut", "tsr_lightning.envs.text"),
            ("tsr_lightning/search/tree.py", "def f():\n    from callbacks.mine import g", "callbacks.mine"),
            ("tsr_lightning/search/nested/deep.py", "from ...training import agent", "tsr_lightning.training.agent"),
            ("tsr_lightning/rng.py", "from tsr_lightning.envs import base", "tsr_lightning.envs.base"),
            ("tsr_lightning/search/tree.py", "import tsr_lightning.gone", "tsr_lightning"),
        ],
    )
    def test_a_forbidden_import_is_found(self, file: str, line: str, imported: str, tree: Path):
        (tree / file).write_text(f"{line}\n")
        importer = file.removesuffix(".py").replace("/", ".")
        assert forbidden_imports(tree) == [f"{importer} -> {imported}"]

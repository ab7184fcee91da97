"""Tasks from the packages of the library: faults chosen by seed, and kept where a visible and a hidden test fail."""

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

from tsr_lightning.errors import ConfigError, RunError
from tsr_lightning.rng import Key
from tsr_lightning.worlds.swe.exam import Marks, examine, modules_of
from tsr_lightning.worlds.swe.faults import ONE_LINE, OPERATORS, Site, inject, sites
from tsr_lightning.worlds.swe.folder import Folder
from tsr_lightning.worlds.swe.library import Package, package
from tsr_lightning.worlds.swe.sandbox import Sandbox
from tsr_lightning.worlds.swe.task import Grade, Grader, Place, Task, TaskSource

DifficultyName = Literal["easiest", "easy", "medium", "hard"]

_MOST_DRAWS = 200


@dataclass(frozen=True)
class Difficulty:
    """What faults a task has, and what is said of them.

    Args:
        faults: the fewest and the most.
        operators: that make them.
        located: the instruction names the file, the function and its lines.
        lines: the most of such a function; None: as many as it has.
    """

    faults: tuple[int, int]
    operators: tuple[str, ...]
    located: bool
    lines: int | None = None


DIFFICULTIES: Mapping[DifficultyName, Difficulty] = {
    "easiest": Difficulty((1, 1), ("OperationFlipOperator",), located=True, lines=10),
    "easy": Difficulty((1, 1), ONE_LINE, located=True),
    "medium": Difficulty((1, 1), tuple(OPERATORS), located=False),
    "hard": Difficulty((2, 3), tuple(OPERATORS), located=False),
}


@dataclass(frozen=True)
class HiddenTests(Grader):
    """The tests of a package.

    Args:
        source: by which the package is found.
        failing: for each test, the visible ones first, whether the fault breaks it.
    """

    source: str
    failing: tuple[bool, ...]

    def __call__(self, sandbox: Sandbox, folder: Folder) -> Grade:
        whole = package(self.source)
        passed = _ask(sandbox, whole, folder).passed
        shown = len(whole.visible)
        both = list(zip(passed, self.failing, strict=True))
        repaired = [passes for passes, broken in both if broken]
        kept = [passes for passes, broken in both if not broken]
        return Grade(_share(repaired), _share(kept), _share(passed[shown:]), _share(passed[:shown]))


@dataclass(frozen=True)
class GeneratedTasks(TaskSource):
    """Tasks that are made when they are wanted.

    Args:
        sandbox: that tests run in.
        packages: names.
        difficulty: of the tasks.
        count: different tasks; a seed picks one, modulo this. None: every seed has its own.
    """

    sandbox: Sandbox
    packages: tuple[str, ...]
    difficulty: DifficultyName
    count: int | None = None

    def task(self, seed: int) -> Task:
        return _make(self, seed if self.count is None else seed % self.count)


def check_packages(sandbox: Sandbox, names: Sequence[str]) -> None:
    """Raises a ConfigError if a package fails its own tests."""
    for name in names:
        whole = package(name)
        marks = _ask(sandbox, whole, whole.folder({}))
        wrong = [one for one in marks.wrong if one]
        if wrong:
            raise ConfigError(f"SWEEnv.packages has {name!r}, which fails its tests without a fault: {wrong[0]}.")


@lru_cache(maxsize=4096)
def _make(source: GeneratedTasks, seed: int) -> Task:
    key = Key(seed).fold_in("software task", source.difficulty)
    for draw in range(_MOST_DRAWS):
        chosen = key.fold_in(draw)
        whole = package(source.packages[int(chosen.uniform() * len(source.packages))])
        task = _draw(source, f"{source.difficulty}-{seed}", whole, chosen)
        if task is not None:
            return task
    raise RunError(
        f"no fault of {_MOST_DRAWS} drawn for seed {seed} is found by visible and hidden tests; see packages"
    )


def _draw(source: GeneratedTasks, name: str, whole: Package, key: Key) -> Task | None:
    """A task with drawn faults; None where its tests do not find them, or find them at times only."""
    difficulty = DIFFICULTIES[source.difficulty]
    fewest, most = difficulty.faults
    chosen = _choose(whole, difficulty.operators, fewest + int(key.uniform(1) * (most - fewest + 1)), key)
    faulty = dict(whole.modules)
    for path in {site.path for site in chosen}:
        faulty[path] = inject(whole.modules[path], [site for site in chosen if site.path == path])
        if faulty[path] == whole.modules[path]:
            return None
    places = tuple(_place(site, faulty[site.path]) for site in chosen)
    if difficulty.lines is not None and any(place.last - place.first >= difficulty.lines for place in places):
        return None
    if len(chosen) > 1 and not all(_breaks(source.sandbox, whole, site) for site in chosen):
        return None
    folder = whole.folder(faulty)
    marks = _ask(source.sandbox, whole, folder)
    shown = len(whole.visible)
    if marks.hangs or all(marks.passed[:shown]) or all(marks.passed[shown:]):
        return None
    if _ask(source.sandbox, whole, folder, hash_seed=1) != marks:
        return None
    return Task(
        name,
        _instruction(whole, marks, places if difficulty.located else ()),
        folder,
        HiddenTests(whole.source, tuple(not passed for passed in marks.passed)),
        {site.path: whole.modules[site.path].encode() for site in chosen},
        places,
        package=whole.name,
    )


def _breaks(sandbox: Sandbox, whole: Package, site: Site) -> bool:
    """Whether a hidden test fails by this fault alone."""
    faulty = whole.folder({site.path: inject(whole.modules[site.path], [site])})
    marks = _ask(sandbox, whole, faulty)
    return not marks.hangs and not all(marks.passed[len(whole.visible) :])


def _choose(whole: Package, operators: tuple[str, ...], count: int, key: Key) -> list[Site]:
    """Sites in different functions, every operator as likely."""
    every = [site for path, text in whole.modules.items() for site in sites(path, text, operators)]
    chosen = list[Site]()
    for fault in range(count):
        taken = {(site.path, site.name.partition(".")[0]) for site in chosen}
        free = [site for site in every if (site.path, site.name.partition(".")[0]) not in taken]
        names = sorted({site.operator for site in free})
        operator = names[int(key.uniform(2 + 2 * fault) * len(names))]
        fitting = [site for site in free if site.operator == operator]
        chosen.append(fitting[int(key.uniform(3 + 2 * fault) * len(fitting))])
    return chosen


def _instruction(whole: Package, marks: Marks, places: Sequence[Place]) -> str:
    """What is wrong, by the first visible test that fails, and where it is, if that is told."""
    test, wrong = next((test, wrong) for test, wrong in zip(whole.visible, marks.wrong, strict=False) if wrong)
    told = [f"The package {whole.name} has a fault, which {test.name} shows: {wrong}."]
    told += [f"It is in {place.path}, lines {place.first} to {place.last} ({place.name})." for place in places]
    return " ".join(told)


def _place(site: Site, text: str) -> Place:
    """Where a site is in the faulty module."""
    node = _find(ast.parse(text), site.name) or _find(ast.parse(text), site.name.partition(".")[0])
    first, last = (node.lineno, node.end_lineno or node.lineno) if node is not None else (1, text.count("\n"))
    return Place(site.path, first, last, site.name, site.operator)


def _find(tree: ast.Module, name: str) -> ast.FunctionDef | ast.ClassDef | None:
    body: Sequence[ast.stmt] = tree.body
    found: ast.FunctionDef | ast.ClassDef | None = None
    for part in name.split("."):
        found = next((n for n in body if isinstance(n, ast.FunctionDef | ast.ClassDef) and n.name == part), None)
        if found is None:
            return None
        body = found.body
    return found


def _share(passed: Sequence[bool]) -> float:
    return sum(passed) / len(passed) if passed else 1.0


def _ask(sandbox: Sandbox, whole: Package, folder: Folder, hash_seed: int = 0) -> Marks:
    """What the tests of a package say of its modules in a folder."""
    return _marks(sandbox, modules_of(folder, whole.name), whole.source, hash_seed)


@lru_cache(maxsize=1 << 12)
def _marks(sandbox: Sandbox, modules: Folder, source: str, hash_seed: int) -> Marks:
    """The same, asked once, since it depends on the modules alone."""
    whole = package(source)
    return examine(sandbox, modules, (*whole.visible, *whole.hidden), hash_seed)

"""Makes the pages of the site that nobody writes: one of each search, objective, task and callback, and the API.

Their text is that of docstrings, of tables and sections of docs/*.md, and of configs/. They go to docs/reference/,
which git ignores.
"""

import inspect
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from html import escape
from os.path import normpath
from pathlib import Path
from pydoc import locate
from typing import Any, NamedTuple

import gymnasium

import callbacks
import tsr_lightning
from benchmarks.architecture import ROOMS
from tsr_lightning import objectives, search

ROOT = Path(__file__).resolve().parent.parent
MADE = "docs/reference"
PRESETS = "docs/objectives/presets.md"  # one page in the repository, and one for each of its sections on the site
OF_OBJECTIVES = ("tree_credit", "graph_credit", "parts", "kl", "shaping", "supervised", "mismatch", "diagnostics")


class Task(NamedTuple):
    """A task of the site."""

    path: str  # of its class
    config: str = ""
    page: str = ""  # written by hand, to which arguments and configuration are appended
    id: str = ""  # where its first turn is shown


WORLDS = "tsr_lightning.worlds"
TASKS = {
    "Sokoban": Task("tsr_lightning.envs.sokoban.env.SokobanEnv", "sokoban.yaml", id="tsr/Sokoban-v0"),
    "FrozenLake": Task("tsr_lightning.envs.frozen_lake.env.TextFrozenLake", "frozen_lake.yaml", id="tsr/FrozenLake-v0"),
    "WebShop": Task(f"{WORLDS}.webshop.env.WebShopEnv", "webshop.yaml", "docs/webshop", "tsr/WebShop-v0"),
    "ALFWorld": Task(f"{WORLDS}.alfworld.env.ALFWorldEnv", "alfworld.yaml", "docs/alfworld", "tsr/ALFWorld-v0"),
    "TextWorld": Task(f"{WORLDS}.textworld.env.TextWorldEnv", "textworld.yaml", "docs/textworld"),
    "Software tasks": Task(f"{WORLDS}.swe.env.SWEEnv", "swe.yaml", "docs/swe"),
    "reasoning-gym": Task(f"{WORLDS}.reasoning_gym.ReasoningGym", "reasoning_gym.yaml"),
    "TextArena": Task(f"{WORLDS}.textarena.TextArena", "textarena.yaml"),
    "TRL's environments": Task("tsr_lightning.envs.trl_env.TRLEnv"),
    "Rows of your own": Task("tsr_lightning.SingleTurnEnv"),
}


@dataclass
class Made:
    """The generated pages, by the page above them in the navigation, and text to append to pages written by hand."""

    below: dict[str, list[str]] = field(default_factory=dict)
    appended: dict[str, str] = field(default_factory=dict)

    def page(self, parent: str, name: str, *parts: str) -> None:
        written(name, *parts)
        self.below.setdefault(parent, []).append(name)


def make() -> Made:
    """Deletes docs/reference/ and writes all of its pages."""
    shutil.rmtree(ROOT / MADE, ignore_errors=True)
    made = Made()
    for part in (studies, measurements, searches, presets, tasks, callback_pages, policies, api):
        part(made)
    return made


def studies(made: Made) -> None:
    """Pages that are written by hand, below the one that lists them."""
    named = {"README", "comparisons", "tuning"}
    found = sorted(path.stem for path in (ROOT / "docs" / "results").glob("*.md"))
    made.below["docs/results/README"] = [f"docs/results/{name}" for name in found if name not in named]


def measurements(made: Made) -> None:
    """Pages on cost, below the one that lists them."""
    made.below["docs/performance"] = sorted(
        f"docs/performance/{path.stem}" for path in (ROOT / "docs/performance").glob("*.md")
    )


def searches(made: Made) -> None:
    for name in STRATEGIES:
        files = [path for path in files_of("search") if f"class_path: {name}\n" in path.read_text(encoding="utf-8")]
        parts = [documented(f"tsr_lightning.{name}"), *rows("docs/search.md", name), *map(shown, files)]
        made.page("docs/search", f"{MADE}/search/{name}", f"# {name}", *parts)


def presets(made: Made) -> None:
    for title, text in SECTIONS.items():
        name = class_of(text)
        [config] = re.findall(r"`configs/(objective/\w+\.yaml)`", text)
        parts = [rooted(text, PRESETS).replace("\n### ", "\n## "), "## Arguments", documented(f"tsr_lightning.{name}")]
        made.page("docs/objectives/README", page_of(title), f"# {title}", *parts, shown(ROOT / "configs" / config))
    made.below["docs/objectives/README"] += [f"docs/objectives/{name}" for name in OF_OBJECTIVES]


def tasks(made: Made) -> None:
    overview = f"{MADE}/tasks/README"
    table = ["| task | is |", "|---|---|"]
    for title, task in TASKS.items():
        name = task.page or f"{MADE}/tasks/{slug(title)}"
        table.append(f"| [{title}](/{name}.md) | {summary(task.path)} |")
        parts = [first_turn(task.id)] if task.id else []
        parts += ["## Arguments", documented(task.path)]
        parts += [shown(ROOT / "configs" / task.config)] if task.config else []
        if task.page:
            made.appended[name] = joined("", *parts)
            made.below.setdefault(overview, []).append(name)
        else:
            about = inspect.getdoc(inspect.getmodule(locate(task.path))) or ""
            made.page(overview, name, f"# {title}", f"```{{eval-rst}}\n{about}\n```", *parts)
    written(overview, "# Tasks", "\n".join(table), "[Your own](/docs/extend.md#an-environment).")


def first_turn(env_id: str) -> str:
    env: Any = gymnasium.make(env_id, disable_env_checker=True).unwrapped
    observation, _ = env.reset(seed=1)
    return f"## The first turn, by default\n\n```text\n{env.instructions}\n\n{observation}\n```"


def policies(made: Made) -> None:
    """Lists the model cards of the embedded policies."""
    overview = f"{MADE}/policies"
    pages = sorted((ROOT / "tsr_lightning" / "policy" / "embedded").glob("*/README.md"))
    made.below[overview] = [str(path.relative_to(ROOT).with_suffix("")) for path in pages]
    links = [f"- [{path.parent.name}](/{path.relative_to(ROOT)})" for path in pages]
    written(overview, "# The embedded policies", "\n".join(links))


def callback_pages(made: Made) -> None:
    overview = f"{MADE}/callbacks/README"
    table = ["| callback | does |", "|---|---|"]
    for name in callbacks.__all__:
        table.append(f"| [{name}](/{MADE}/callbacks/{name}.md) | {summary(f'callbacks.{name}')} |")
        made.page(overview, f"{MADE}/callbacks/{name}", f"# {name}", documented(f"callbacks.{name}"))
    written(overview, "# Callbacks", "\n".join(table), "[Your own](/docs/extend.md#a-callback).")


def api(made: Made) -> None:
    """A page for each room with its public names; those with a page of their own are on that one."""
    overview = f"{MADE}/api/README"
    rooms: dict[str, list[str]] = {}
    for module, names in tsr_lightning.PUBLIC.items():
        room = module.partition(".")[0]
        rooms.setdefault(room if room in ROOMS else "common", []).extend(f"tsr_lightning.{name}" for name in names)
    more = set(objectives.__all__) - {last(path) for path in rooms["objectives"]}
    rooms["objectives"] += [f"tsr_lightning.objectives.{name}" for name in sorted(more)]
    table = ["| part | has |", "|---|---|"]
    for room, paths in sorted(rooms.items()):
        table.append(f"| [{room}](/{MADE}/api/{room}.md) | {ROOMS.get(room, 'what all others use')} |")
        own = [path for path in paths if last(path) not in WITH_A_PAGE]
        made.page(overview, f"{MADE}/api/{room}", f"# {room}", *(documented(path, members=True) for path in own))
    intro = "The public names, by the package that they are in. `import tsr_lightning as tsr` has them all."
    written(overview, "# API", intro, "\n".join(table))


def role(found: re.Match[str]) -> str:
    """A page that a docstring names, as a link."""
    page = "objectives/README" if found[0] == PRESETS else found[1]
    return f":doc:`{found[0]} </docs/{page}>`"


def linked(text: str) -> str:
    """A page's text with links to a section of the presets turned into links to the page of that section."""
    found = rf"\]\([\w./]*{Path(PRESETS).name}#([\w-]+)\)"
    return re.sub(found, lambda link: f"](/{MADE}/objectives/{link[1]}.md)", text)


def rooted(text: str, page: str) -> str:
    """The text of a page for another: with links that begin at the root."""

    def link(found: re.Match[str]) -> str:
        path = normpath(Path(page).parent / found[1]) if found[1] else page
        return f"](/{path}{found[2] or ''})"

    return re.sub(r"\]\((?!https?:)([^)#\s]*)(#[^)\s]*)?\)", link, text)


def sections(page: str) -> Iterator[tuple[str, str]]:
    """(title, text) of the sections of a page, where its subsections belong to them."""
    for section in re.split(r"^## ", (ROOT / page).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, _, text = section.partition("\n")
        yield title, text


def rows(page: str, name: str) -> Iterator[str]:
    """Yields the rows of a page's tables that begin with a name, each under the heading of its table."""
    heading = ""
    for block in (ROOT / page).read_text(encoding="utf-8").split("\n\n"):
        title, separator, *lines = (block + "\n").splitlines() if block.startswith("|") else ["", ""]
        heading = block if re.match("##+ ", block) else heading
        if own := [line for line in lines if re.match(rf"\| `?{name}\b", line)]:
            yield rooted("\n".join([heading.replace("###", "##"), "", title, separator, *own]), page)


def shown(config: Path) -> str:
    path = config.relative_to(ROOT)
    return f"## {path}\n\n```{{literalinclude}} /{path}\n:language: yaml\n```"


def documented(path: str, members: bool = False) -> str:
    """Returns the directive that renders the docstring of a class or a function."""
    kind = "class" if inspect.isclass(locate(path)) else "function"
    return f"```{{eval-rst}}\n.. auto{kind}:: {path}\n{'   :members:' if members and kind == 'class' else ''}\n```"


def summary(path: str) -> str:
    text = inspect.getdoc(locate(path)) or ""
    return escape(" ".join(text.partition("\n\n")[0].split()), quote=False)


def files_of(layer: str) -> list[Path]:
    return sorted((ROOT / "configs" / layer).glob("*.yaml"))


def last(path: str) -> str:
    return path.rpartition(".")[2]


def slug(title: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-")


def page_of(title: str) -> str:
    return f"{MADE}/objectives/{slug(title)}"


def class_of(section: str) -> str:
    return re.findall(r"class\s+`(\w+)`", section)[0]


def joined(*parts: str) -> str:
    return "\n\n".join(parts) + "\n"


def written(name: str, *parts: str) -> None:
    path = ROOT / f"{name}.md"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(joined(*parts), encoding="utf-8")


STRATEGIES = [
    name for name in search.__all__ if issubclass(getattr(search, name), search.Strategy) and name != "Strategy"
]
SECTIONS = dict(sections(PRESETS))
WITH_A_PAGE = {*STRATEGIES, *map(class_of, SECTIONS.values()), *(last(task.path) for task in TASKS.values())}
# Public names as documents write them, and in full.
NAMES = {
    **{name: f"tsr_lightning.objectives.{name}" for name in objectives.__all__},
    **{name: f"tsr_lightning.{name}" for names in tsr_lightning.PUBLIC.values() for name in names},
    **{name: f"callbacks.{name}" for name in callbacks.__all__},
    **{last(task.path): task.path for task in TASKS.values()},
}
NAMES |= {full: full for full in NAMES.values()}

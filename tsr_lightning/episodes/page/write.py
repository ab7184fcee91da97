"""Makes the page: a Jinja2 template around data that is compressed in blocks and read by the page itself."""

import base64
import gzip
import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

from tsr_lightning.episodes.files import read_header, read_lines
from tsr_lightning.episodes.schema import FATES, Episode, Header, Node
from tsr_lightning.errors import ConfigError
from tsr_lightning.files import write_whole

_BLOCK = 2**18  # characters of the episodes that are compressed together
_MARK = b'<p id="counts" role="status">'  # of every page, in its first bytes
_HEAD = 2**16
_LOOKS = {"tsr/Sokoban-v0": "sokoban", "tsr/FrozenLake-v0": "lake", "tsr/WebShop-v0": "shop"}  # others are text


@dataclass(frozen=True, slots=True)
class Source:
    """A file of episodes, and what the page calls it."""

    path: Path
    run: str  # empty where there is one run alone

    def label(self, header: Header) -> str:
        """Which rollout or evaluation it is."""
        return f"{f'{self.run}: ' if self.run else ''}{header.phase}, epoch {header.epoch}"


@dataclass(slots=True)
class _Columns:
    """What the page filters and lists by, an item per episode."""

    file: list[int] = field(default_factory=list)
    task: list[int] = field(default_factory=list)
    instance: list[str] = field(default_factory=list)  # perhaps of more bits than JavaScript's numbers hold
    initial: list[int] = field(default_factory=list)  # equal where first states are
    member: list[int] = field(default_factory=list)
    success: list[int] = field(default_factory=list)
    turns: list[int] = field(default_factory=list)
    strategy: list[str] = field(default_factory=list)
    returns: list[float] = field(default_factory=list)

    def add(self, file: int, task: int, initial: int, episode: Episode) -> None:
        self.file.append(file)
        self.task.append(task)
        self.instance.append(str(episode.instance))
        self.initial.append(initial)
        self.member.append(episode.member)
        self.success.append(int(episode.succeeded))
        self.turns.append(len(episode.path))
        self.strategy.append(episode.strategy)
        self.returns.append(episode.episode_return)

    def plain(self) -> dict[str, list[Any]]:
        """By the names that the page knows."""
        columns = asdict(self)
        return {"return": columns.pop("returns"), **columns}


def write_page(sources: Iterable[Source], title: str, output: Path) -> tuple[int, list[str]]:
    """Writes the page, and returns how many episodes it shows and what is wrong with the files.

    Raises:
        ConfigError: no episode can be read, or the output is a file that is there and no such page.
    """
    if output.exists() and not _is_page(output):
        raise ConfigError(f"{output} is there, and no page of episodes: give another --output")
    tasks: dict[str, str] = {}  # labels, with the way in which each is drawn
    initial: dict[str, int] = {}  # numbers of the fingerprints of first states
    files, problems, lines, columns = list[str](), list[str](), list[str](), _Columns()
    for source in sources:
        try:
            header = read_header(source.path)
        except ConfigError as error:
            problems.append(str(error))
            continue
        labels = [(each["name"], _LOOKS.get(each["env"], "text")) for each in header.envs]
        tasks |= dict(labels)
        places = {label: place for place, label in enumerate(tasks)}
        for line in read_lines(source.path):
            if line.problem:
                problems.append(line.problem)
            elif line.episode is not None and not 0 <= line.episode.env < len(labels):
                given = f"has the env {line.episode.env}, and the header's envs end with {len(labels) - 1}"
                problems.append(f"{source.path}: line {line.number} {given}")
            elif line.episode is not None:
                number = initial.setdefault(line.episode.state, len(initial))
                columns.add(len(files), places[labels[line.episode.env][0]], number, line.episode)
                lines.append(json.dumps(_shown(line.episode), ensure_ascii=False, separators=(",", ":")))
        files.append(source.label(header))
    if not lines:
        raise ConfigError(problems[0] if problems else "the files hold no episodes, so there is nothing to show")
    blocks, starts = _blocks(lines)
    index = {
        "columns": columns.plain(),
        "files": files,
        "tasks": list(tasks),
        "looks": list(tasks.values()),
        "starts": starts,
    }
    write_whole(output, _rendered(title, problems, list(tasks), files, json.dumps(index), blocks, len(lines)))
    return len(lines), problems


def _is_page(path: Path) -> bool:
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return _MARK in file.read(_HEAD)


def _shown(episode: Episode) -> Mapping[str, Any]:
    """What the page shows of an episode: all but token ids, keys and states."""
    return {
        "strategy": episode.strategy,
        "origin": episode.origin,
        "ended": episode.ended,
        "obs": [[each.role, each.content] for each in episode.observation],
        "nodes": [_shown_node(node) for node in episode.nodes],
    }


def _shown_node(node: Node) -> Mapping[str, Any]:
    # an oracle's response was not sampled, and has 0 for each token
    is_unsampled = node.demonstrated and not any(node.logprobs)
    names = ("parent", "turn", "text", "reward", "valid", "effective", "finished", "ended")
    figures = ("env_score", "score", "value", "advantage", "weight")
    return {
        **{name: getattr(node, name) for name in (*names, *figures, "why")},
        "obs": [[each.role, each.content] for each in node.observation],
        "logprob": None if is_unsampled else math.fsum(node.logprobs),
        "tokens": len(node.response),
        "fate": FATES.index(node.fate),
    }


def _blocks(lines: Iterable[str]) -> tuple[list[str], list[int]]:
    """Compressed blocks of lines, and the number of the first line of each."""
    blocks: list[str] = []
    starts: list[int] = []
    done = 0
    for block in _cut(lines):
        starts.append(done)
        blocks.append(_packed("\n".join(block)))
        done += len(block)
    return blocks, starts


def _cut(lines: Iterable[str]) -> Iterator[list[str]]:
    block: list[str] = []
    size = 0
    for line in lines:
        if block and size + len(line) > _BLOCK:
            yield block
            block, size = [], 0
        block.append(line)
        size += len(line)
    if block:
        yield block


def _packed(text: str) -> str:
    return base64.b64encode(gzip.compress(text.encode(), mtime=0)).decode()


def _rendered(
    title: str, problems: list[str], tasks: list[str], files: list[str], index: str, blocks: list[str], count: int
) -> str:
    loader = PackageLoader("tsr_lightning.episodes", "page")
    environment = Environment(
        loader=loader, autoescape=select_autoescape(default=True), undefined=StrictUndefined, trim_blocks=True
    )
    style, script = (loader.get_source(environment, name)[0] for name in ("page.css", "page.js"))
    return environment.get_template("page.html.j2").render(
        title=title,
        problems=problems,
        tasks=tasks,
        files=[{"label": label} for label in files],
        count=count,
        index=_packed(index),
        blocks=blocks,
        style=style,
        script=script,
        style_hash=_hash(style),
        script_hash=_hash(script),
    )


def _hash(text: str) -> str:
    """By which the page's own policy lets this text run, and no other."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"

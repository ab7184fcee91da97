"""Draws the rooms of the code and who imports whom, from the imports themselves, into docs/architecture.md.

python -m benchmarks.architecture
"""

import ast
from collections.abc import Iterator, Mapping, Sequence, Set
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PACKAGES = ("tsr_lightning", "callbacks")
# small modules that every room may import
COMMON = (
    *("errors", "files", "rng", "signals", "tool_calls", "trajectory", "costs", "durations", "statistics"),
    "free_memory",
    "unique_keys",
)
ROOMS = {
    "cli": "the `tsr` command: checks before a model loads, messages, shipped configurations",
    "callbacks": "Lightning callbacks: evaluation, instance filter, collapse guard, logs",
    "probe": "tiny tasks on which a run's model, objective and search show what is broken",
    "studies": "grids of configurations and seeds, their runs and results, and the report; no torch",
    "episodes": "episodes on disk: schema, reading and writing, other formats, the page of `tsr view`; no torch",
    "outward": "this project's environments as SkyRL-gym's and as verifiers'; no torch",
    "estimate": "memory by part and hours of a configuration, from shapes; no weights",
    "training": "the LightningModule and the LightningDataModule: credit, updates, Lightning's loops and internals",
    "rollout": "the actor, which plays a policy; rollouts, asynchronous ones too, and evaluation; no Lightning",
    "search": "nodes, strategies, scorers, the group plan, the driver; no tokenizer",
    "objectives": "credit and loss as pure functions of tensors; no model",
    "policy": "loading, policy, reference and critic as views of one model, chat formats, export",
    "engines": "token ids and seeds in, token ids and log-probabilities out; no text",
    "worlds": "WebShop, ALFWorld, TextWorld and software tasks, and what text games share; no torch, no language model",
    "envs": "the environments' contract, its checker, and the tasks on grids; no torch, no language model",
    "batching": "trajectories as packed training sequences, minibatches and micro-batches",
    "modeling": "packed attention and the packed forward pass: PyTorch, flex_attention for GPUs, C kernels for CPUs",
}
BEGIN, END = "<!-- made by python -m benchmarks.architecture -->\n", "<!-- end -->"


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The files of the packages by dotted name."""
    files = [path for package in PACKAGES for path in sorted((root / package).rglob("*.py"))]
    return {".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path for path in files}


def imports(root: Path = ROOT) -> Iterator[tuple[str, str]]:
    """(importing, imported) modules of the packages."""
    known = modules(root)
    for importer, path in known.items():
        for name in imported_names(path, importer):
            if name.partition(".")[0] in PACKAGES:
                # `from package import name` imports a module, or something that the package defines
                yield importer, name if name in known else name.rpartition(".")[0]


def imported_names(path: Path, module: str) -> Sequence[str]:
    """The dotted names that a file imports anywhere, inside functions too."""
    return _imported(
        path.read_text(encoding="utf-8"), module if path.name == "__init__.py" else module.rpartition(".")[0]
    )


@cache
def _imported(text: str, package: str) -> tuple[str, ...]:
    names: list[str] = []
    parents = package.split(".")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = parents[: len(parents) - node.level + 1] if node.level else []
            source = [*above, *([node.module] if node.module else [])]
            names += [".".join([*source, alias.name]) for alias in node.names]
    return tuple(names)


def room(module: str) -> str:
    """`tsr_lightning.search.tree` -> `search`, `callbacks.table` -> `callbacks`."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "tsr_lightning" else package


def arrows(root: Path = ROOT) -> dict[str, set[str]]:
    """The rooms that each room imports, without the common modules."""
    found: dict[str, set[str]] = {name: set() for name in ROOMS}
    for importer, imported in imports(root):
        if room(importer) in found and room(imported) in found and room(importer) != room(imported):
            found[room(importer)].add(room(imported))
    return found


def files_in_circles(name: str, root: Path = ROOT) -> list[str]:
    """The modules of a room that import themselves by way of other modules of it."""
    graph: dict[str, set[str]] = {module: set() for module in modules(root) if room(module) == name}
    for importer, imported in imports(root):
        if importer in graph and imported in graph and importer != imported:
            graph[importer].add(imported)
    return [module for module in graph if module in reachable(graph, module)]


def direct(graph: Mapping[str, Set[str]]) -> dict[str, set[str]]:
    """The arrows that no longer path implies: the transitive reduction, where the graph has no cycle."""
    return {
        name: {after for after in targets if not any(after in reachable(graph, other) for other in targets - {after})}
        for name, targets in graph.items()
    }


def reachable(graph: Mapping[str, Set[str]], start: str) -> set[str]:
    """All that a path of arrows leads to from `start`, which is in it only where there is a cycle."""
    found: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += graph[name]
    return found


def drawing(root: Path = ROOT) -> str:
    """A mermaid drawing of the direct arrows and a table of all of them."""
    graph = arrows(root)
    lines = [f"    {name} --> {after}" for name, targets in direct(graph).items() for after in sorted(targets)]
    rows = [f"| `{name}` | {holds} | {', '.join(sorted(graph[name])) or '–'} |" for name, holds in ROOMS.items()]
    mermaid = "\n".join(["```mermaid", "flowchart TD", *lines, "```"])
    table = "\n".join(["| room | holds | imports |", "|---|---|---|", *rows])
    return f"{mermaid}\n\n{table}\n"


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{drawing()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")


if __name__ == "__main__":
    main()

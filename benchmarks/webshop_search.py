"""Time and memory of WebShop's search, up to 1.18 million products: `python -m benchmarks.webshop_search`.

The products are random, in the format of the published files, and match the published sample in words per text,
different words per text and over all texts, and the fraction of products with options and instructions. Queries are
instructions, as in the recorded rankings. Each size runs in its own process on one core. bm25s, where it is installed,
is measured too, without tokenizing and stemming.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np

from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.goals import Goals
from tsr_lightning.worlds.webshop.reading import read_catalogue
from tsr_lightning.worlds.webshop.search import Search, indexed_text
from tsr_lightning.worlds.webshop.shop import MAX_RESULTS
from tsr_lightning.worlds.webshop.tokens import terms

SIZES = (1_000, 100_000, 1_180_000)
QUERIES = 300
PRODUCTS, ATTRIBUTES = "items_shuffle.json", "items_ins_v2.json"
_BATCH = 1_000  # products per generator
_LETTERS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z"), ("a", "e", "i", "o", "u")
_SYLLABLES = [consonant + vowel for consonant in _LETTERS[0] for vowel in _LETTERS[1]]
_COMMON = ("and", "size", "for", "color", "the", "your", "to", "women", "with", "made")  # the most frequent words


@lru_cache(1 << 20)
def _word(rank: int) -> str:
    """The word that is the `rank`-th in frequency."""
    if rank < len(_COMMON):
        return _COMMON[rank]
    word, left = "", rank + len(_SYLLABLES) ** 2  # of three syllables or more
    while left:
        left, syllable = divmod(left, len(_SYLLABLES))
        word += _SYLLABLES[syllable]
    return word


def _texts(generator: np.random.Generator, middle: float, spread: float, count: int) -> list[str]:
    """Texts of log-normal length; word ranks by a Pareto law, with 0.45 and 10 fitted to the published sample."""
    lengths = generator.lognormal(np.log(middle), spread, count).astype(int) + 1
    drawn = 10 * ((1 - generator.random(lengths.sum())) ** (-1 / 0.45) - 1)
    ranks = np.minimum(drawn, 2.0**53).astype(np.int64) % (1 << 24)
    words, ends = [_word(rank) for rank in ranks.tolist()], np.cumsum(lengths).tolist()
    return [" ".join(words[start:end]) for start, end in zip([0, *ends], ends, strict=False)]


def random_records(count: int) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Records of items_shuffle.json and items_ins_v2.json."""
    for first in range(0, count, _BATCH):
        here = min(_BATCH, count - first)
        generator = Key(1).fold_in("products", first).generator()
        titles, descriptions = _texts(generator, 16, 0.4, here), _texts(generator, 50, 1.1, here)
        bullets, attribute_words = _texts(generator, 23, 0.6, 5 * here), _texts(generator, 2, 0.2, 4 * here)
        values = _texts(generator, 1.2, 0.4, 12 * here)
        cents, chances = generator.integers(199, 20_000, (here, 2)), generator.random((here, 4))
        for i in range(here):
            colours, sizes = values[12 * i : 12 * i + 6], values[12 * i + 6 : 12 * i + 12]
            options = {"Color": _choices(colours), "Size": _choices(sizes) if chances[i, 1] < 0.3 else None}
            attributes = attribute_words[4 * i : 4 * i + 4]
            product = {
                "asin": f"B{first + i:09d}",
                "name": titles[i].title(),
                "category": "fashion",
                "query": attributes[3],
                "product_category": f"Clothing › {attributes[2]} › {attributes[3]}",
                "full_description": descriptions[i],
                "small_description": bullets[5 * i : 5 * i + 5],
                "pricing": "$".join(["", *(str(cent / 100) for cent in cents[i, : 1 + (chances[i, 2] < 0.2)])]),
                "customization_options": options if chances[i, 0] < 0.48 else "",
                "images": [""],
            }
            words: dict[str, Any] = {"attributes": attributes}
            if chances[i, 3] < 0.415:
                instruction = f"Find me {attributes[0]}, {attributes[1]} {attributes[3]} with {titles[i][:40]}"
                words |= {"instruction": instruction, "instruction_attributes": attributes[:2]}
            yield product, words


def _choices(values: Sequence[str]) -> list[dict[str, Any]]:
    return [
        {
            "value": value,
            "is_selected": False,
            "price_string": "",
            "price": 0,
            "url": "/dp/B000000000/ref=twister",
            "image": None,
        }
        for value in values
    ]


def write_files(folder: Path, count: int) -> None:
    with (folder / PRODUCTS).open("w") as products, (folder / ATTRIBUTES).open("w") as attributes:
        for number, (product, words) in enumerate(random_records(count)):
            products.write(("[" if number == 0 else ",\n") + json.dumps(product))
            attributes.write(("{" if number == 0 else ",\n") + f"{json.dumps(product['asin'])}: {json.dumps(words)}")
        products.write("]\n")
        attributes.write("}\n")


def measure(folder: Path) -> dict[str, Any]:
    """The figures of the files in a folder. Call in a fresh process, whose memory is measured."""
    before = _resident()
    (catalogue, _), reading = _timed(lambda: read_catalogue(folder / PRODUCTS, folder / ATTRIBUTES))
    loaded = _resident()
    goals, making = _timed(lambda: Goals(catalogue))
    with_goals = _resident()
    search, building = _timed(lambda: Search(catalogue.products))
    indexed, peak = _resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    places = Key(2).generator().integers(len(goals), size=QUERIES)
    queries = [goals[place].instruction.lower() for place in places.tolist()]
    for query in queries:
        terms(query)  # fills the cache of stems, for bm25s below as well
    fresh, cached = _milliseconds(search, queries), _milliseconds(search, queries)
    return {
        "products": len(catalogue),
        "goals": len(goals),
        "terms": len(search.index.vocabulary),
        "postings": len(search.index.documents),
        "file_mb": (folder / PRODUCTS).stat().st_size / 1e6,
        "read_s": reading,
        "goals_s": making,
        "build_s": building,
        "products_mb": loaded - before,
        "goals_mb": with_goals - loaded,
        "index_mb": indexed - with_goals,
        "index_arrays_mb": search.index.nbytes / 2**20,
        "peak_mb": peak,
        "fresh_ms": fmean(fresh),
        "fresh_median_ms": median(fresh),
        "cached_us": 1e3 * fmean(cached),
        "bm25s": _beside(map(indexed_text, catalogue.products), queries) if find_spec("bm25s") else None,
    }


def _beside(texts: Iterator[str], queries: Sequence[str]) -> dict[str, float]:
    """The same with bm25s, which gets terms, so that its seconds exclude tokenizing and stemming."""
    import bm25s

    start = _resident()
    vocabulary: dict[str, int] = {}
    numbers = [[vocabulary.setdefault(term, len(vocabulary)) for term in terms(text)] for text in texts]
    corpus = bm25s.tokenization.Tokenized(ids=numbers, vocab=vocabulary)
    engine = bm25s.BM25(method="lucene", k1=0.9, b=0.4)
    _, seconds = _timed(lambda: engine.index(corpus, show_progress=False))
    numbers.clear()
    taken = _resident() - start

    def retrieve(query: str) -> Any:
        return engine.retrieve([terms(query)], k=MAX_RESULTS, show_progress=False)

    fresh = _milliseconds(retrieve, queries)
    return {"build_s": seconds, "index_mb": taken, "fresh_ms": fmean(fresh), "fresh_median_ms": median(fresh)}


def _timed(work: Callable[[], Any]) -> tuple[Any, float]:
    """The result of some work, and its processor seconds."""
    start = time.process_time()
    return work(), time.process_time() - start


def _milliseconds(search: Callable[[str], Any], queries: Sequence[str]) -> list[float]:
    return [1e3 * _timed(partial(search, query))[1] for query in queries]


def _resident() -> float:
    """Memory of this process in MiB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 2**20


def table(rows: Sequence[dict[str, Any]]) -> str:
    names = (
        *(
            "products",
            "file MB",
            "read s",
            "memory of products MB",
            "goals",
            "goals s",
            "index s",
            "memory of index MB",
        ),
        *("peak MB", "fresh query ms (median)", "cached query µs", "bm25s: index s, MB, query ms (median)"),
    )
    return f"| {' | '.join(names)} |\n|{'---|' * len(names)}\n" + "".join(map(_line, rows))


def _line(row: dict[str, Any]) -> str:
    cells = (
        *(f"{row['products']:,}", f"{row['file_mb']:,.0f}", f"{row['read_s']:.1f}", f"{row['products_mb']:,.0f}"),
        *(f"{row['goals']:,}", f"{row['goals_s']:.2f}", f"{row['build_s']:.2f}", f"{row['index_mb']:,.0f}"),
        *(f"{row['peak_mb']:,.0f}", _query(row), f"{row['cached_us']:.1f}"),
    )
    other = row["bm25s"]
    beside = f"{other['build_s']:.1f}, {other['index_mb']:,.0f}, {_query(other)}" if other else "not installed"
    return f"| {' | '.join((*cells, beside))} |\n"


def _query(row: dict[str, Any]) -> str:
    return f"{row['fresh_ms']:.2f} ({row['fresh_median_ms']:.2f})"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webshop_search", description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES, help="numbers of products")
    parser.add_argument("--folder", type=Path, help="folder for the temporary files: 3 GB for 1.18 million")
    parser.add_argument("--out", type=Path, default=Path("runs/webshop"), help="folder of the table and the JSON")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)  # what each size's own process does
    args = parser.parse_args()
    if args.measure:
        print(json.dumps(measure(args.measure)))
        return
    if not find_spec("bm25s"):
        print("bm25s is not installed, so its columns stay empty: pip install bm25s")
    rows = []
    for size in args.sizes:
        with tempfile.TemporaryDirectory(dir=args.folder) as folder:
            write_files(Path(folder), size)
            command = [sys.executable, "-m", "benchmarks.webshop_search", "--measure", folder]
            printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows.append(json.loads(printed.splitlines()[-1]))
        print(table(rows), flush=True)
    args.out.mkdir(parents=True, exist_ok=True)
    figures = {"machine": platform.processor() or platform.machine(), "python": platform.python_version(), "rows": rows}
    (args.out / "search.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    (args.out / "search.md").write_text(table(rows), encoding="utf-8")


if __name__ == "__main__":
    main()

"""The original WebShop and ours side by side: `python -m benchmarks.webshop_parity --original WebShop --data DIR`.

`--original` is a checkout of github.com/princeton-nlp/WebShop, whose code runs unchanged; it needs flask,
beautifulsoup4, thefuzz, tqdm and rich. Stubs replace its search (both sides use the same ranking), spaCy (on both sides
every word of letters is a noun), and modules that it imports and does not use in its text mode. `--data` is the folder
of the published files.

Compares episodes of random actions step by step: page, clickables, reward, end, purchase and all parts of its reward.
Then compares the rewards of random purchases.
"""

import argparse
import contextlib
import gzip
import io
import json
import re
import sys
import tempfile
import types
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.factory import published_files
from tsr_lightning.worlds.webshop.nouns import alphabetic
from tsr_lightning.worlds.webshop.pages import DONE, Page, act, clickables, has_search_bar
from tsr_lightning.worlds.webshop.product import Goal, Product
from tsr_lightning.worlds.webshop.render import text
from tsr_lightning.worlds.webshop.reward import purchase_reward
from tsr_lightning.worlds.webshop.shop import MAX_RESULTS, Shop

_ODD_ACTIONS = """
look around
click[]
search[]
search[ ]
click[no such thing]
search[blue
Click[buy now]
click[Search]
click[search]
search[a[b]c]
click[buy now] please
 click[back to search]
search[search_results shirt]
search[item_page shirt]
search[<c> fashion]
search[<q> candles]
search[<c> none]
search[zzz]
click[next >]
click[< prev]
click[attributes]
"""
ODD_ACTIONS = tuple(_ODD_ACTIONS.strip().splitlines())
_WORD = re.compile(r"\w+|\S")


class Ranking:
    """Replaces Lucene on both sides: products that share words with the query, ranked by their number, then by hash."""

    def __init__(self) -> None:
        self.titles: list[tuple[str, frozenset[str]]] = []  # (asin, words of the title) of all products

    def __call__(self, query: str) -> list[int]:
        words = set(query.lower().split())
        found = [
            (-len(words & title), zlib.crc32((query + asin).encode()), place)
            for place, (asin, title) in enumerate(self.titles)
            if words & title
        ]
        return [place for *_, place in sorted(found)[:MAX_RESULTS]]

    def search(self, query: str, k: int) -> list[Any]:
        return [types.SimpleNamespace(docid=self.titles[place][0]) for place in self(query)]

    def doc(self, asin: str) -> Any:
        return types.SimpleNamespace(raw=lambda: json.dumps({"id": asin}))


def install_stubs(ranking: Ranking) -> None:
    """Replaces large modules that the original imports."""

    def module(name: str, **parts: object) -> None:
        sys.modules[name] = types.ModuleType(name)
        vars(sys.modules[name]).update(parts)

    def nlp(title: str) -> list[Any]:
        tokens = _WORD.findall(title)
        return [types.SimpleNamespace(text=token, pos_="NOUN" if token.isalpha() else "X") for token in tokens]

    module("gym", Env=object)
    module("gym.envs")
    module("gym.envs.registration", register=lambda **_: None)
    module("torch", zeros=lambda size: [0.0] * size)
    module("cleantext")
    module("rank_bm25", BM25Okapi=object)
    module("spacy", load=lambda _: nlp)
    module("pyserini")
    module("pyserini.search")
    module("pyserini.search.lucene", LuceneSearcher=lambda _: ranking)
    package = types.ModuleType("web_agent_site.envs")  # its own imports a browser
    sys.modules["web_agent_site.envs"] = package


class Original:
    """The original's environment, without its output.

    Args:
        checkout: of its repository.
        data: folder of the published files.
        human: whether its goals are the human ones.
        attributes: whether products have a page of attributes.
    """

    def __init__(self, checkout: Path, data: Path, human: bool, attributes: bool) -> None:
        self.ranking = Ranking()
        install_stubs(self.ranking)
        sys.path.insert(0, str(checkout))
        sys.modules["web_agent_site.envs"].__path__ = [str(checkout / "web_agent_site" / "envs")]
        from web_agent_site.engine import engine, goal
        from web_agent_site.envs import web_agent_text_env

        products, synthetic, human_goals = (_unpacked(path) for path in published_files(data))
        engine.DEFAULT_ATTR_PATH, engine.HUMAN_ATTR_PATH = synthetic, human_goals
        engine.print = goal.print = lambda *_: None
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            self.env = web_agent_text_env.WebAgentTextEnv(
                observation_mode="text", file_path=products, human_goals=int(human), show_attrs=attributes
            )
        self.server, self.reward_of = self.env.server, goal.get_reward
        self.products = [self._product(raw) for raw in self.server.all_products]
        self.ranking.titles = [(p.asin, frozenset(p.title.lower().split())) for p in self.products]
        self.shop = Shop(Catalogue(self.products), self.ranking, attributes)

    def _product(self, raw: Mapping[str, Any]) -> Product:
        return Product(
            asin=raw["asin"],
            title=raw["Title"],
            description=raw["Description"],
            bullets=tuple(raw["BulletPoints"]),
            category=raw["category"],
            query=raw["query"],
            product_category=raw["product_category"],
            attributes=tuple(raw["Attributes"]),
            options=tuple((name, tuple(values)) for name, values in raw["options"].items()),
            prices=tuple(raw["pricing"]),
            price=self.server.product_prices[raw["asin"]],
        )

    def goal(self, index: int) -> Goal:
        raw = self.server.goals[index]
        wanted = raw["goal_options"]
        options = wanted.items() if isinstance(wanted, dict) else [("", value) for value in wanted]
        return Goal(
            asin=raw["asin"],
            instruction=raw["instruction_text"],
            query=raw["query"],
            name=raw["name"],
            product_category=raw["product_category"],
            attributes=tuple(raw["attributes"]),
            options=tuple(options),
            price_limit=float(raw["price_upper"]),
        )


def _unpacked(path: Path | None) -> str:
    """The path of a plain file with the same content."""
    if path is None:
        raise SystemExit("the original needs all three published files")
    if path.suffix != ".gz":
        return str(path)
    plain = Path(tempfile.mkdtemp()) / path.stem
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    return str(plain)


def action(key: Key, original: Original, available: Mapping[str, Any], goal: Goal) -> str:
    """A random action: mostly one that the page has."""
    names: Sequence[str] = available["clickables"]
    if key.uniform(0) < 0.08:
        return ODD_ACTIONS[key.bits(1) % len(ODD_ACTIONS)]
    if available["has_search_bar"] or not names or key.uniform(0) < 0.12:
        texts = (goal.instruction, goal.query, original.products[key.bits(1) % len(original.products)].title)
        words = texts[key.bits(2) % len(texts)].split()
        start = key.bits(3) % max(1, len(words))
        return f"search[{' '.join(words[start : start + 1 + key.bits(4) % 5])}]"
    if "buy now" in names and key.uniform(5) < 0.3:
        return f"click[{('buy now', 'description', 'features', 'attributes', '< prev')[key.bits(6) % 5]}]"
    name = names[key.bits(7) % len(names)]
    return f"click[{name.upper() if key.uniform(8) < 0.05 else name}]"


def compared(original: Original, key: Key, length: int) -> Iterator[tuple[str, object, object, str]]:
    """The comparisons of an episode: what, ours, theirs, and the action before."""
    index = key.bits() % len(original.server.goals)
    goal, shop, page, reward = original.goal(index), original.shop, Page(), 0.0
    original.server.user_sessions.clear()  # or the original remembers every episode
    observation, _ = original.env.reset(session=index)
    yield "page", text(shop, page, goal.instruction), observation, "reset"
    for turn in range(length):
        available = original.env.get_available_actions()
        ours = {"has_search_bar": has_search_bar(page), "clickables": list(clickables(shop, page))}
        yield "clickables", ours, available, "the turn before"
        played = action(key.fold_in(turn), original, available, goal)
        observation, paid, done, _ = original.env.step(played)
        result = act(shop, page, played)
        page = page if result is None else result
        bought = result is not None and page.kind == DONE
        values = [value for _, value in page.options]
        detail = purchase_reward(original.products[page.place or 0], goal, values, alphabetic)
        reward = detail.reward if bought else reward
        yield "reward and end", (detail.reward if bought else 0.0, bought), (paid, done), played
        yield "page", text(shop, page, goal.instruction, reward), observation, played
        if bought and done:
            session = original.server.user_sessions[original.env.session]
            chosen = original.products[page.place or 0].asin, dict(page.options)
            yield "purchase", chosen, (session["asin"], dict(session["options"])), played
            yield "parts of the reward", _parts(detail), session["verbose_info"], played
            return


def _parts(detail: Any) -> dict[str, Any]:
    return {name: part for name, part in asdict(detail).items() if part is not None and name != "reward"}


def purchases(original: Original, key: Key, count: int) -> Iterator[tuple[str, object, object, str]]:
    """The rewards of random purchases: of the goal's product, of one with the same query, and of any."""
    server = original.server
    for number in range(count):
        own_key = key.fold_in(number)
        index = own_key.bits() % len(server.goals)
        raw = server.goals[index]
        alike = [place for place, product in enumerate(original.products) if product.query == raw["query"]]
        own = [place for place, product in enumerate(original.products) if product.asin == raw["asin"]]
        choice = (own, alike, range(len(original.products)))[own_key.bits(1) % 3]
        product = original.products[choice[own_key.bits(2) % len(choice)]]
        chosen = {name: values[own_key.bits(3) % len(values)] for name, values in product.options if values}
        item = server.product_item_dict[product.asin]
        theirs = original.reward_of(item, raw, price=product.price, options=chosen, verbose=True)
        detail = purchase_reward(product, original.goal(index), list(chosen.values()), alphabetic)
        yield "random purchase", (detail.reward, _parts(detail)), theirs, product.asin


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webshop_parity", description=__doc__)
    parser.add_argument("--original", type=Path, required=True, help="checkout of princeton-nlp/WebShop")
    parser.add_argument("--data", type=Path, required=True, help="folder of the published files")
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--purchases", type=int, default=10_000)
    parser.add_argument("--human", action="store_true", help="human goals")
    parser.add_argument("--attributes", action="store_true", help="products have a page of attributes")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # the original calls beautifulsoup4 in an old way
    original = Original(args.original, args.data, args.human, args.attributes)
    key, counts, differing, steps, episode = Key(args.seed), Counter[str](), Counter[str](), 0, 0

    def count(pairs: Iterator[tuple[str, object, object, str]]) -> int:
        ended = 0
        for what, ours, theirs, played in pairs:
            counts[what] += 1
            ended += what == "reward and end"
            if ours != theirs:
                differing[what] += 1
                print(f"{what} differs after {played!r}\n  ours:   {ours!r}\n  theirs: {theirs!r}")
        return ended

    while steps < args.steps:
        steps += count(compared(original, key.fold_in("episode", episode), length=30))
        episode += 1
    count(purchases(original, key.fold_in("purchases"), args.purchases))
    print(f"{steps} steps in {episode} episodes")
    for what, number in counts.items():
        print(f"{what}: {number} compared, {differing[what]} differ")


if __name__ == "__main__":
    main()

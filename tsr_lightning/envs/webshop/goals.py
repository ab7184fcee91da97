"""Goals made from a catalogue's wishes, in the original's order, and the parts that training and testing take.

Texts, options, order and weights are those of the original (princeton-nlp/WebShop, web_agent_site/engine/goal.py and
the shuffle in envs/web_agent_text_env.py). Price limits are drawn as there, the larger of two of the next four tens
above the price, but by a key of the article: there they come from a generator that nobody seeded, and differ between
two runs. A limit from elsewhere, such as a recorded one, is put in by `with_limit`.
"""

import math
import random
from array import array
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from enum import StrEnum
from functools import lru_cache
from itertools import accumulate, combinations
from typing import Final, overload

from tsr_lightning.envs.webshop.catalogue import Catalogue
from tsr_lightning.envs.webshop.product import Goal, Product, Wish
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

MOST: Final = 100_000_000  # goals; the full published set makes about 8 million
_TENS: Final = tuple(10.0 * ten for ten in range(1, 100))  # dollars
_SHUFFLE: Final = 233  # the original's seed
_PERMUTATION: Final = 42  # RAGEN's seed


class Asked(StrEnum):
    """Whose wishes the goals are."""

    SYNTHETIC = "synthetic"
    HUMAN = "human"


class Part(StrEnum):
    """Which goals: the first 500, the next 1000, the rest, or all of them."""

    TEST = "test"
    VALIDATION = "validation"
    TRAIN = "train"
    ALL = "all"


_BOUNDS: Final = {Part.TEST: (0, 500), Part.VALIDATION: (500, 1500), Part.TRAIN: (1500, None), Part.ALL: (0, None)}


class Split(StrEnum):
    """In whose order the goals are parted."""

    ORIGINAL = "original"  # as the shuffle left them (baseline_models/env.py)
    RAGEN = "ragen"  # after one more permutation (RAGEN, ragen/env/webshop/env.py)


def part_of(count: int, part: Part, split: Split) -> Sequence[int]:
    """The indices of a part of `count` goals. An instance's seed names the one at `seed % len`, as RAGEN does it.

    Raises:
        ConfigError: if there is none.
    """
    start, stop = _BOUNDS[part]
    if start >= count:
        raise ConfigError(
            f"part is {part}, which begins at goal {start} of {count}: take part {Part.ALL}, or more goals."
        )
    if split is Split.ORIGINAL:
        return range(start, count if stop is None else min(stop, count))
    return _shuffled(count, _PERMUTATION)[start:stop]


@lru_cache(maxsize=4)
def _shuffled(count: int, seed: int) -> "array[int]":
    """The numbers up to `count`, moved as `random.shuffle` moves a list of that length."""
    order = array("I", range(count))
    random.Random(seed).shuffle(order)
    return order


class Goals(Sequence[Goal]):
    """All goals of a catalogue, in the original's shuffled order; each is made when it is asked for.

    Args:
        catalogue: of the articles.
        asked: synthetic wishes, of which each combination of the article's options makes a goal, or human ones.
    """

    def __init__(self, catalogue: Catalogue, asked: Asked = Asked.SYNTHETIC) -> None:
        self._products = catalogue.products
        self._wishes = catalogue.wishes if asked is Asked.SYNTHETIC else catalogue.human
        counts, self._shares = [], Counter[str]()  # how many goals name an attribute, for the weights
        for wish in self._wishes:
            counts.append(_combinations(wish, self._products[wish.place]))
            for attribute in wish.attributes:
                self._shares[attribute] += counts[-1]
        total = sum(counts)
        if not total:
            raise ConfigError(f"the catalogue of {len(catalogue)} products has no {asked} goals: {_REMEDY[asked]}.")
        if total > MOST:
            raise ConfigError(f"the catalogue makes {total} goals, which nobody can hold: read fewer products.")
        self._starts = array("Q", accumulate(counts, initial=0))  # wish i makes goals [starts[i], starts[i + 1])
        self._order = _shuffled(total, _SHUFFLE)

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Goal: ...
    @overload
    def __getitem__(self, index: slice) -> list[Goal]: ...
    def __getitem__(self, index: int | slice) -> Goal | list[Goal]:
        if isinstance(index, slice):
            return [self._made(number) for number in self._order[index]]
        return self._made(self._order[index])

    def _made(self, number: int) -> Goal:
        rank = bisect_right(self._starts, number) - 1
        wish = self._wishes[rank]
        product = self._products[wish.place]
        options = (
            _combination(product, number - self._starts[rank]) if wish.options is None else _nameless(wish.options)
        )
        weight = sum(1.0 / self._shares[attribute] for attribute in wish.attributes) / len(wish.attributes)
        return make_goal(product, wish, options, weight if wish.options is None else 1.0)


@lru_cache(maxsize=4)
def goals_of(catalogue: Catalogue, asked: Asked) -> Goals:
    """The goals of a catalogue, counted and shuffled once in a process."""
    return Goals(catalogue, asked)


_REMEDY: Final = {
    Asked.SYNTHETIC: "give items_ins_v2*.json of the same products, which has their instructions",
    Asked.HUMAN: "give items_human_ins.json, and products that it speaks of",
}


def make_goal(product: Product, wish: Wish, options: tuple[tuple[str, str], ...], weight: float = 1.0) -> Goal:
    """The goal of one wish and one combination of options."""
    limit = price_limit(product.price, limit_key(product.asin, wish))
    told = " with " + ", and ".join(f"{name}: {value}" for name, value in options)
    said = f"{wish.instruction}{told if options else ''}" if wish.options is None else wish.instruction.strip(".")
    return Goal(
        asin=product.asin,
        instruction=said + limit_text(limit),
        query=product.query,
        name=product.title,
        product_category=product.product_category,
        attributes=wish.attributes,
        options=options,
        price_limit=limit,
        weight=weight,
    )


def limit_key(asin: str, wish: Wish) -> Key:
    """One draw per article for its synthetic goals, one per human instruction, as in the original."""
    return Key(0).fold_in("webshop", "limit", asin, "synthetic" if wish.options is None else wish.number)


def price_limit(price: float, key: Key) -> float:
    """The larger of two of the next four tens above the price; infinity where fewer than two are left below 1000."""
    pairs = list(combinations([ten for ten in _TENS if ten > price][:4], 2))
    return pairs[int(key.uniform() * len(pairs))][1] if pairs else math.inf


def limit_text(limit: float) -> str:
    return "" if math.isinf(limit) else f", and price lower than {limit:.2f} dollars"


def with_limit(goal: Goal, limit: float) -> Goal:
    """The same goal with another price limit, in its text too."""
    said = goal.instruction.removesuffix(limit_text(goal.price_limit)) + limit_text(limit)
    return replace(goal, instruction=said, price_limit=limit)


def _combinations(wish: Wish, product: Product) -> int:
    return math.prod(len(values) for _, values in product.options) if wish.options is None else 1


def _combination(product: Product, number: int) -> tuple[tuple[str, str], ...]:
    """The `number`-th of all combinations: names in alphabetic order, the last one's values changing fastest."""
    chosen = []
    for name, values in sorted(product.options, reverse=True):
        number, place = divmod(number, len(values))
        chosen.append((name, values[place]))
    return tuple(reversed(chosen))


def _nameless(values: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    return tuple(("", value) for value in values)

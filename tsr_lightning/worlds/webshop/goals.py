"""Goals made from a catalogue's templates, in the original's order, and their splits.

Texts, options, order and weights are the original's (princeton-nlp/WebShop, web_agent_site/engine/goal.py and the
shuffle in envs/web_agent_text_env.py). Price limits follow its rule, the larger of two of the next four tens above the
price, but are drawn by a key of the product: the original's generator is unseeded, so its limits differ between runs.
`with_limit` sets another limit, such as a recorded one.
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

from tsr_lightning.errors import ConfigError, require
from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.product import Goal, GoalTemplate, Product

MAX_GOALS: Final = 100_000_000  # the full published set makes about 8 million
_TENS: Final = tuple(10.0 * ten for ten in range(1, 100))  # dollars
_SHUFFLE_SEED: Final = 233  # the original's
_PERMUTATION_SEED: Final = 42  # RAGEN's


class GoalSource(StrEnum):
    """The source of instructions: made from products and their options, or written by people."""

    SYNTHETIC = "synthetic"
    HUMAN = "human"


class Split(StrEnum):
    """A split of the goals: the first 500, the next 1000, the rest, or all of them."""

    TEST = "test"
    VALIDATION = "validation"
    TRAIN = "train"
    ALL = "all"


_BOUNDS: Final = {Split.TEST: (0, 500), Split.VALIDATION: (500, 1500), Split.TRAIN: (1500, None), Split.ALL: (0, None)}


class GoalOrder(StrEnum):
    """The order in which goals are split."""

    ORIGINAL = "original"  # as shuffled by the original (baseline_models/env.py)
    RAGEN = "ragen"  # after one more permutation (RAGEN, ragen/env/webshop/env.py)


def split_indices(count: int, split: Split, order: GoalOrder) -> Sequence[int]:
    """The indices of a split of `count` goals. A seed names the one at `seed % len`, as in RAGEN.

    Raises:
        ConfigError: if the split is empty.
    """
    start, stop = _BOUNDS[split]
    remedy = f"it begins at goal {start} of {count}; take 'all', or more goals."
    require(start < count, "WebShopEnv.split", split.value, remedy)
    if order is GoalOrder.ORIGINAL:
        return range(start, count if stop is None else min(stop, count))
    return _shuffled(count, _PERMUTATION_SEED)[start:stop]


@lru_cache(maxsize=4)
def _shuffled(count: int, seed: int) -> "array[int]":
    """The numbers up to `count`, moved as `random.shuffle` moves a list of that length."""
    order = array("I", range(count))
    random.Random(seed).shuffle(order)
    return order


class Goals(Sequence[Goal]):
    """All goals of a catalogue, in the original's shuffled order, each made on access.

    Args:
        catalogue: of the products.
        source: synthetic templates, each combination of whose product's options makes a goal, or human ones.
    """

    def __init__(self, catalogue: Catalogue, source: GoalSource = GoalSource.SYNTHETIC) -> None:
        self._products = catalogue.products
        self._templates = catalogue.templates if source is GoalSource.SYNTHETIC else catalogue.human_templates
        counts, self._frequencies = [], Counter[str]()  # how many goals name an attribute, for the weights
        for template in self._templates:
            counts.append(_combinations(template, self._products[template.place]))
            for attribute in template.attributes:
                self._frequencies[attribute] += counts[-1]
        total = sum(counts)
        if not total:
            raise ConfigError(f"the catalogue of {len(catalogue)} products has no {source} goals: {_REMEDY[source]}.")
        if total > MAX_GOALS:
            raise ConfigError(f"the catalogue makes {total} goals, more than {MAX_GOALS}: read fewer products.")
        self._starts = array("Q", accumulate(counts, initial=0))  # template i makes goals [starts[i], starts[i + 1])
        self._order = _shuffled(total, _SHUFFLE_SEED)

    def __len__(self) -> int:
        return len(self._order)

    @overload
    def __getitem__(self, index: int) -> Goal: ...
    @overload
    def __getitem__(self, index: slice) -> list[Goal]: ...
    def __getitem__(self, index: int | slice) -> Goal | list[Goal]:
        if isinstance(index, slice):
            return [self._goal(number) for number in self._order[index]]
        return self._goal(self._order[index])

    def _goal(self, number: int) -> Goal:
        rank = bisect_right(self._starts, number) - 1
        template = self._templates[rank]
        product = self._products[template.place]
        if template.options is not None:
            return make_goal(product, template, tuple(("", value) for value in template.options))
        options = _combination(product, number - self._starts[rank])
        weight = sum(1.0 / self._frequencies[attribute] for attribute in template.attributes)
        return make_goal(product, template, options, weight / len(template.attributes))


@lru_cache(maxsize=4)
def goals_of(catalogue: Catalogue, source: GoalSource) -> Goals:
    """The goals of a catalogue, counted and shuffled once per process."""
    return Goals(catalogue, source)


_REMEDY: Final = {
    GoalSource.SYNTHETIC: "give items_ins_v2*.json of the same products, which has their instructions",
    GoalSource.HUMAN: "give items_human_ins.json, and products that it names",
}


def make_goal(
    product: Product, template: GoalTemplate, options: tuple[tuple[str, str], ...], weight: float = 1.0
) -> Goal:
    """The goal of a template and a combination of options."""
    limit = price_limit(product.price, limit_key(product.asin, template))
    if template.options is None:
        wanted = " with " + ", and ".join(f"{name}: {value}" for name, value in options)
        instruction = f"{template.instruction}{wanted if options else ''}"
    else:
        instruction = template.instruction.strip(".")
    return Goal(
        asin=product.asin,
        instruction=instruction + limit_text(limit),
        query=product.query,
        name=product.title,
        product_category=product.product_category,
        attributes=template.attributes,
        options=options,
        price_limit=limit,
        weight=weight,
    )


def limit_key(asin: str, template: GoalTemplate) -> Key:
    """One draw per product for its synthetic goals, one per human instruction, as in the original."""
    return Key(0).fold_in("webshop", "limit", asin, "synthetic" if template.options is None else template.number)


def price_limit(price: float, key: Key) -> float:
    """The larger of two of the next four tens above the price; infinity where fewer than two are left below 1000."""
    pairs = list(combinations([ten for ten in _TENS if ten > price][:4], 2))
    return pairs[int(key.uniform() * len(pairs))][1] if pairs else math.inf


def limit_text(limit: float) -> str:
    return "" if math.isinf(limit) else f", and price lower than {limit:.2f} dollars"


def with_limit(goal: Goal, limit: float) -> Goal:
    """Replaces a goal's price limit, in its text too."""
    instruction = goal.instruction.removesuffix(limit_text(goal.price_limit)) + limit_text(limit)
    return replace(goal, instruction=instruction, price_limit=limit)


def _combinations(template: GoalTemplate, product: Product) -> int:
    return math.prod(len(values) for _, values in product.options) if template.options is None else 1


def _combination(product: Product, number: int) -> tuple[tuple[str, str], ...]:
    """The `number`-th of all combinations: names in alphabetic order, the last one's values changing fastest."""
    chosen = []
    for name, values in sorted(product.options, reverse=True):
        number, place = divmod(number, len(values))
        chosen.append((name, values[place]))
    return tuple(reversed(chosen))

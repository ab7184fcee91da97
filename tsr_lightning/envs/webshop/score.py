"""How good a page is for a goal: the feedback that search gets. Knows the goal's hidden parts and ranks no query.

A page is worth the best reward that can be reached from it without another search, times `PATIENCE` for every click
that this takes. So it rises along the best way from the results to the purchase, and a page from which nothing can be
bought with the turns left is worth nothing. Of the results only those listed on the page count, and a page without
articles in sight, such as the first one, is worth 0.
"""

from collections.abc import Sequence
from functools import lru_cache

from tsr_lightning.envs.webshop.nouns import Nouns
from tsr_lightning.envs.webshop.pages import ITEM, RESULTS, SUB, Page, listed, options_of, sayable
from tsr_lightning.envs.webshop.product import Goal, Product
from tsr_lightning.envs.webshop.reward import appraise, satisfied, worth
from tsr_lightning.envs.webshop.shop import Shop

PATIENCE = 0.98  # a click; so near to 1 that one matched requirement more is worth the four clicks to it


def prospect(shop: Shop, page: Page, goal: Goal, nouns: Nouns, turns: int) -> float:
    """The worth of a page on which nothing has been bought yet, in [0, 1].

    Args:
        shop: where.
        page: now.
        goal: asks for it.
        nouns: finds the nouns of a title.
        turns: left.
    """
    if page.kind == RESULTS:
        places = listed(shop, page)[0]
        return max((_bought(shop.product(place), goal, (), nouns, turns, 1) for place in places), default=0.0)
    if page.kind in (ITEM, SUB) and page.place is not None:
        chosen = tuple(value for _, value in page.options)
        return _bought(shop.product(page.place), goal, chosen, nouns, turns, int(page.kind == SUB))
    return 0.0


def _bought(
    product: Product, goal: Goal, chosen: tuple[str, ...], nouns: Nouns, turns: int, clicks_before: int
) -> float:
    """The best of buying with 0, 1, ... further clicks on options."""
    spare = turns - clicks_before - 1  # the purchase is a click too
    if spare < 0:
        return 0.0
    appraisal = appraise(product, goal, nouns)
    return max(
        worth(appraisal, goal, matched) * PATIENCE ** (clicks_before + clicks + 1)
        for clicks, matched in enumerate(most_matched(product, goal, chosen)[: spare + 1])
    )


@lru_cache(maxsize=1 << 14)
def most_matched(product: Product, goal: Goal, chosen: tuple[str, ...]) -> Sequence[int]:
    """How many of the goal's options can be satisfied with 0, 1, ... clicks: [1 + clicks that help].

    Exact: every option of the product has one value at a time, and one value may satisfy several wishes.
    """
    belongs = options_of(product)
    now = {belongs[value]: satisfied(goal, value) for value in chosen}
    offered: dict[str, set[frozenset[int]]] = {}
    for value, name in belongs.items():
        if sayable(value):
            offered.setdefault(name, set()).add(satisfied(goal, value))
    fewest: dict[frozenset[int], int] = {frozenset(): 0}  # what is satisfied -> clicks
    for name in {**now, **offered}:
        ways = {**dict.fromkeys(offered.get(name, ()), 1), now.get(name, frozenset[int]()): 0}
        further: dict[frozenset[int], int] = {}
        for had, before in fewest.items():
            for got, click in ways.items():
                both = had | got
                further[both] = min(further.get(both, before + click), before + click)
        fewest = further
    return tuple(
        max((len(had) for had, clicks in fewest.items() if clicks <= budget), default=0)
        for budget in range(max(fewest.values()) + 1)
    )

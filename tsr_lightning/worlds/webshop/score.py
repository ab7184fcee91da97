"""The score of a page for a goal, which search uses. Knows the goal's hidden parts and ranks no query.

It is the best reward that can be reached from the page without another search, times `CLICK_DISCOUNT` for each click on
the way. So it rises along the best path from the results to the purchase, and is 0 where the turns left allow no
purchase. Of the results only those listed on the page count; a page without products, such as the first one, scores 0.
"""

from collections.abc import Sequence
from functools import lru_cache

from tsr_lightning.worlds.webshop.nouns import NounTagger
from tsr_lightning.worlds.webshop.pages import ITEM, RESULTS, SUB, Page, is_expressible, listed, option_by_value
from tsr_lightning.worlds.webshop.product import Goal, Product
from tsr_lightning.worlds.webshop.reward import match_product, matched_options, total_reward
from tsr_lightning.worlds.webshop.shop import Shop

CLICK_DISCOUNT = 0.98  # so near to 1 that one more matched requirement is worth the four clicks to it


def page_score(shop: Shop, page: Page, goal: Goal, nouns: NounTagger, turns: int) -> float:
    """The score of a page before anything is bought, in [0, 1].

    Args:
        shop: that the page belongs to.
        page: now.
        goal: what to buy.
        nouns: finds the nouns of a title.
        turns: left.
    """
    if page.kind == RESULTS:
        places = listed(shop, page)[0]
        return max((_purchase_score(shop.product(place), goal, (), nouns, turns, 1) for place in places), default=0.0)
    if page.kind in (ITEM, SUB) and page.place is not None:
        chosen = tuple(value for _, value in page.options)
        return _purchase_score(shop.product(page.place), goal, chosen, nouns, turns, int(page.kind == SUB))
    return 0.0


def _purchase_score(
    product: Product, goal: Goal, chosen: tuple[str, ...], nouns: NounTagger, turns: int, clicks_before: int
) -> float:
    """The best score of a purchase after 0, 1, ... further clicks on options."""
    spare = turns - clicks_before - 1  # the purchase is a click too
    if spare < 0:
        return 0.0
    match = match_product(product, goal, nouns)
    return max(
        total_reward(match, goal, matched) * CLICK_DISCOUNT ** (clicks_before + clicks + 1)
        for clicks, matched in enumerate(most_matched_options(product, goal, chosen)[: spare + 1])
    )


@lru_cache(maxsize=1 << 14)
def most_matched_options(product: Product, goal: Goal, chosen: tuple[str, ...]) -> Sequence[int]:
    """Counts the options of the goal that 0, 1, ... clicks can satisfy: [1 + clicks that help].

    Exact: each option of the product has one value at a time, and one value may satisfy several options of the goal.
    """
    option_of = option_by_value(product)
    now = {option_of[value]: matched_options(goal, value) for value in chosen}
    offered: dict[str, set[frozenset[int]]] = {}
    for value, name in option_of.items():
        if is_expressible(value):
            offered.setdefault(name, set()).add(matched_options(goal, value))
    fewest: dict[frozenset[int], int] = {frozenset(): 0}  # options satisfied -> clicks
    for name in {**now, **offered}:
        choices = {**dict.fromkeys(offered.get(name, ()), 1), now.get(name, frozenset[int]()): 0}
        extended: dict[frozenset[int], int] = {}
        for matched, before in fewest.items():
            for added, click in choices.items():
                union = matched | added
                extended[union] = min(extended.get(union, before + click), before + click)
        fewest = extended
    return tuple(
        max((len(matched) for matched, clicks in fewest.items() if clicks <= budget), default=0)
        for budget in range(max(fewest.values()) + 1)
    )

"""The oracle: from any page, the next action of a shortest path to the best reward that the actions left can reach.

It knows all products and their reward. It searches with words of the goal, as an agent could, and with the title of the
goal's own product only where those find nothing as good; so its paths are shortest among those. It searches only on
pages with a search box, although the shop would take a search from any page.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from tsr_lightning.worlds.webshop.nouns import NounTagger
from tsr_lightning.worlds.webshop.pages import (
    BACK,
    BUY,
    CLICK,
    INDEX,
    ITEM,
    NEXT,
    PER_PAGE,
    PREV,
    RESULTS,
    SEARCH,
    SUB,
    Page,
    clickables,
    is_expressible,
    listed,
    product_on,
    verb_and_argument,
)
from tsr_lightning.worlds.webshop.product import Goal
from tsr_lightning.worlds.webshop.reward import match_product, matched_options, total_reward
from tsr_lightning.worlds.webshop.shop import RANDOM, Shop, listing

# rewards of buying a product, rising, each with the option values still to click
Completions = tuple[tuple[float, tuple[str, ...]], ...]

_UNLIMITED = 1 << 30  # actions, where those left are too few to buy anything
_NO_QUERY = -1  # of a path without a search; before all queries


class Path(NamedTuple):
    """Actions that end with a purchase."""

    reward: float
    actions: tuple[str, ...]
    uses_goal_words: bool  # whether all words that it searches for are in the goal
    query: int  # the number of the query that it begins with, or _NO_QUERY


class Offer(NamedTuple):
    """A product in a list of results."""

    page: int  # of the list, from 1
    place: int  # in the catalogue
    completions: Completions


def next_action(shop: Shop, goal: Goal, page: Page, nouns: NounTagger, left: int) -> str:
    """The next action of the best path from a page on which nothing has been bought yet.

    Args:
        shop: that the page belongs to.
        goal: what to buy.
        page: now.
        nouns: finds the nouns of a title.
        left: actions in the episode. Where they are too few to buy anything, the path is planned without a limit.
    """
    for budget in (left, _UNLIMITED):
        if path := _best(shop, goal, page, nouns, budget):
            return path.actions[0]
    # no query of the goal finds anything
    return _search(_queries(goal)[0][0]) if page.kind == INDEX else _click(BACK)


def _best(shop: Shop, goal: Goal, page: Page, nouns: NounTagger, left: int) -> Path | None:
    """The best path within the actions left."""
    best = min(_without_search(shop, goal, page, nouns, left), key=_rank, default=None)
    back = () if page.kind == INDEX else (_click(BACK),)
    for number, (query, uses_goal_words) in enumerate(_queries(goal)):
        # a search, a product and its purchase: no path that begins with a search is shorter
        if best and best.reward >= 1 and (not uses_goal_words or len(best.actions) <= len(back) + 3):
            break
        found = [] if best is None else [best]
        for offer in _offers(shop, goal, tuple(query.split(" ")), nouns):
            start = (*back, _search(query), *_turn_pages(1, offer.page), _click(shop.product(offer.place).asin))
            found += _completed(start, offer.completions, left, uses_goal_words, number)
        best = min(found, key=_rank, default=None)
    return best


def _rank(path: Path) -> tuple[float, bool, int, int]:
    """The sort key of a path, smallest for the best."""
    return -path.reward, not path.uses_goal_words, len(path.actions), path.query


def _without_search(shop: Shop, goal: Goal, page: Page, nouns: NounTagger, left: int) -> Iterator[Path]:
    """Paths without a further search."""
    start: tuple[str, ...] = ()  # actions that lead to `page`
    if page.kind == SUB:
        start, page = (_click(PREV),), page._replace(kind=ITEM, sub="")
    if page.kind == ITEM:
        yield from _completed(start, _completions(shop, goal, page, nouns), left)
        if page.keywords[0] == RANDOM:
            return  # the way back leads to another random listing
        start, page = (*start, _click(PREV)), Page(RESULTS, page.keywords, page.number)
    if page.kind == RESULTS:
        for offer in _offers_of(shop, goal, page, nouns):
            path = (*start, *_turn_pages(page.number, offer.page), _click(shop.product(offer.place).asin))
            yield from _completed(path, offer.completions, left)


def _completed(
    start: tuple[str, ...], completions: Completions, left: int, uses_goal_words: bool = True, query: int = _NO_QUERY
) -> Iterator[Path]:
    """`start`, which leads to a product's page, continued to the best purchase within the actions left."""
    for reward, values in reversed(completions):
        if len(start) + len(values) + 1 <= left:
            yield Path(reward, (*start, *map(_click, values), _click(BUY)), uses_goal_words, query)
            return


def _turn_pages(page: int, wanted: int) -> list[str]:
    """Clicks from one page of a list to another."""
    return [_click(NEXT if wanted > page else PREV)] * abs(wanted - page)


def _offers_of(shop: Shop, goal: Goal, page: Page, nouns: NounTagger) -> Sequence[Offer]:
    """The offers in the list that a page belongs to; of a random listing those on the page alone."""
    if page.keywords[0] != RANDOM:
        return _offers(shop, goal, page.keywords, nouns)
    fresh = Page(ITEM, page.keywords, page.number)
    return [
        Offer(page.number, place, _completions(shop, goal, fresh._replace(place=place), nouns))
        for place in listed(shop, page)[0]
    ]


@lru_cache(maxsize=1 << 12)
def _queries(goal: Goal) -> tuple[tuple[str, bool], ...]:
    """Queries that may find the goal's product, in lower case, and whether all their words are in the goal."""
    attributes_and_query = " ".join([*goal.attributes, goal.query])
    with_options = " ".join([attributes_and_query, *(value for _, value in goal.options)])
    of_goal = (attributes_and_query, goal.query, with_options, goal.instruction)
    queries = {query.lower(): True for query in of_goal}
    queries.setdefault(goal.name.lower(), False)
    return tuple(pair for pair in queries.items() if verb_and_argument(_search(pair[0])) == (SEARCH, pair[0]))


@lru_cache(maxsize=1 << 12)
def _offers(shop: Shop, goal: Goal, keywords: tuple[str, ...], nouns: NounTagger) -> tuple[Offer, ...]:
    """The offers in a list, but for those no better than an earlier one on the same page."""
    offers: list[Offer] = []
    for index, place in enumerate(listing(shop, keywords)):
        if not is_expressible(shop.product(place).asin.lower()):
            continue
        number = index // PER_PAGE + 1
        completions = _completions(shop, goal, Page(ITEM, keywords, place=place), nouns)
        if not any(offer.page == number and _covers(offer.completions, completions) for offer in offers):
            offers.append(Offer(number, place, completions))
    return tuple(offers)


def _covers(one: Completions, other: Completions) -> bool:
    """True if `one` reaches each reward of `other`, or a higher one, with no more clicks."""
    return all(any(r >= reward and len(v) <= len(values) for r, v in one) for reward, values in other)


@lru_cache(maxsize=1 << 14)
def _completions(shop: Shop, goal: Goal, page: Page, nouns: NounTagger) -> Completions:
    """Rewards of buying from a product's page, each with the fewest clicks on options for it, rising in both.

    Goes option by option over the sets of the goal's options that can be satisfied, with the fewest clicks for each:
    the value already chosen costs none, another value one.
    """
    product = product_on(shop, page)
    values: dict[str, list[str]] = {}
    for value, target in clickables(shop, page).items():
        if target.option is not None and is_expressible(value) and matched_options(goal, value):
            values.setdefault(target.option, []).append(value)
    chosen = dict(page.options)
    none = frozenset[int]()
    reached: dict[frozenset[int], tuple[str, ...]] = {none: ()}
    for name in values | chosen:
        kept = matched_options(goal, chosen[name]) if name in chosen else none
        extended: dict[frozenset[int], tuple[str, ...]] = {}
        for matched, clicks in reached.items():
            steps = [(kept, clicks), *((matched_options(goal, v), (*clicks, v)) for v in values.get(name, []))]
            for added, clicked in steps:
                if len(clicked) < len(extended.get(matched | added, (*clicked, ""))):
                    extended[matched | added] = clicked
        reached = extended
    match = match_product(product, goal, nouns)
    best: list[tuple[float, tuple[str, ...]]] = []
    for matched, clicks in sorted(reached.items(), key=lambda item: (len(item[1]), -len(item[0]))):
        reward = total_reward(match, goal, len(matched))
        if not best or reward > best[-1][0]:
            best.append((reward, clicks))
    return tuple(best)


def _search(query: str) -> str:
    return f"{SEARCH}[{query}]"


def _click(name: str) -> str:
    return f"{CLICK}[{name.lower()}]"

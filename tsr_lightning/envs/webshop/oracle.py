"""How to shop best: from any page the next action of a shortest way to the best reward that the actions left can reach.

The oracle knows all articles and what each is worth to the goal. It searches with words of the goal alone, as a shopper
could, and with the title of the goal's own article only where those find nothing as good; so its ways are shortest
among those. It searches where there is a search box, although the shop would take a search from everywhere.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from tsr_lightning.envs.webshop.nouns import Nouns
from tsr_lightning.envs.webshop.pages import (
    BACK,
    BUY,
    CLICK,
    DONE,
    INDEX,
    ITEM,
    NEXT,
    PER_PAGE,
    PREV,
    RESULTS,
    SEARCH,
    SUB,
    Page,
    act,
    clickables,
    listed,
    read,
    sayable,
)
from tsr_lightning.envs.webshop.product import Goal
from tsr_lightning.envs.webshop.reward import appraise, satisfied, worth
from tsr_lightning.envs.webshop.shop import RANDOM, Shop, listing
from tsr_lightning.rng import Key

# rewards of buying an article, rising, each with the values of options still to click
Completions = tuple[tuple[float, tuple[str, ...]], ...]

_ENOUGH = 1 << 30  # actions, where those left are too few to buy anything


class Way(NamedTuple):
    """A way to buy something."""

    reward: float
    actions: tuple[str, ...]
    told: bool  # whether the goal tells all the words that it searches for
    query: int  # the number of the search that it begins with; -1: it begins with none


class Offer(NamedTuple):
    """An article in a list."""

    page: int  # of the list, from 1
    place: int  # in the catalogue
    completions: Completions


def turn(
    shop: Shop,
    goal: Goal,
    page: Page,
    nouns: Nouns,
    legal: Callable[[Page], Sequence[str]],
    *,
    actions: int,
    left: int,
    noise: float = 0.0,
    key: Key | None = None,
) -> tuple[str, ...]:
    """The actions of a turn.

    Args:
        shop: where.
        goal: what to buy.
        page: now.
        nouns: finds the nouns of a title, for the reward.
        legal: the single actions that can be said on a page.
        actions: the most that the turn plays.
        left: in the episode.
        noise: probability that an action is a random legal one instead; what follows is planned anew.
        key: to draw them from.
    """
    said: list[str] = []
    for place in range(min(actions, left)):
        if page.kind == DONE:
            break
        if noise and key is not None and key.uniform(2 * place) < noise:
            choice = legal(page)
            said.append(choice[int(key.uniform(2 * place + 1) * len(choice))])
        else:
            said.append(next_action(shop, goal, page, nouns, left - place))
        page = act(shop, page, said[-1]) or page
    return tuple(said)


def next_action(shop: Shop, goal: Goal, page: Page, nouns: Nouns, left: int) -> str:
    """The next action of the best way from here.

    Args:
        shop: where.
        goal: what to buy.
        page: now; nothing has been bought yet.
        nouns: finds the nouns of a title.
        left: actions in the episode. Where they are too few to buy anything, the way is planned as if they were not.
    """
    for budget in (left, _ENOUGH):
        if way := _best(shop, goal, page, nouns, budget):
            return way.actions[0]
    # nothing that the goal says finds anything
    return _search(_queries(goal)[0][0]) if page.kind == INDEX else _click(BACK)


def _best(shop: Shop, goal: Goal, page: Page, nouns: Nouns, left: int) -> Way | None:
    """The best way within the actions left."""
    best = min(_from_here(shop, goal, page, nouns, left), key=_rank, default=None)
    back = () if page.kind == INDEX else (_click(BACK),)
    for order, (query, told) in enumerate(_queries(goal)):
        # a search, an article and its purchase: no shorter way begins with a search
        if best and best.reward >= 1 and (not told or len(best.actions) <= len(back) + 3):
            break
        found = [] if best is None else [best]
        for offer in _offers(shop, goal, tuple(query.split(" ")), nouns):
            way = (*back, _search(query), *_turned(1, offer.page), _click(shop.product(offer.place).asin))
            found += _bought(way, offer.completions, left, told, order)
        best = min(found, key=_rank, default=None)
    return best


def _rank(way: Way) -> tuple[float, bool, int, int]:
    """Small for the best."""
    return -way.reward, not way.told, len(way.actions), way.query


def _from_here(shop: Shop, goal: Goal, page: Page, nouns: Nouns, left: int) -> Iterator[Way]:
    """Ways without a further search."""
    before: tuple[str, ...] = ()  # actions that lead to the page that is looked at
    if page.kind == SUB:
        before, page = (_click(PREV),), page._replace(kind=ITEM, sub="")
    if page.kind == ITEM:
        yield from _bought(before, _completions(shop, goal, page, nouns), left)
        if page.keywords[0] == RANDOM:
            return  # the list would be another one
        before, page = (*before, _click(PREV)), Page(RESULTS, page.keywords, page.number)
    if page.kind == RESULTS:
        for offer in _seen(shop, goal, page, nouns):
            way = (*before, *_turned(page.number, offer.page), _click(shop.product(offer.place).asin))
            yield from _bought(way, offer.completions, left)


def _bought(
    way: tuple[str, ...], completions: Completions, left: int, told: bool = True, order: int = -1
) -> Iterator[Way]:
    """`way` to an article's page, continued to the best purchase for which the actions left are enough."""
    for reward, values in reversed(completions):
        if len(way) + len(values) + 1 <= left:
            yield Way(reward, (*way, *map(_click, values), _click(BUY)), told, order)
            return


def _turned(page: int, wanted: int) -> list[str]:
    """From page to page of a list."""
    return [_click(NEXT if wanted > page else PREV)] * abs(wanted - page)


def _seen(shop: Shop, goal: Goal, page: Page, nouns: Nouns) -> Sequence[Offer]:
    """What is offered in the list that this is a page of."""
    if page.keywords[0] != RANDOM:
        return _offers(shop, goal, page.keywords, nouns)
    fresh = Page(ITEM, page.keywords, page.number)
    return [
        Offer(page.number, place, _completions(shop, goal, fresh._replace(place=place), nouns))
        for place in listed(shop, page)[0]
    ]


@lru_cache(maxsize=1 << 12)
def _queries(goal: Goal) -> tuple[tuple[str, bool], ...]:
    """Queries to find the goal's article by, as they are sent, and whether the goal tells their words."""
    kind = " ".join([*goal.attributes, goal.query])
    told = [kind, goal.query, " ".join([kind, *(value for _, value in goal.options)]), goal.instruction]
    queries = {query.lower(): True for query in told}
    queries.setdefault(goal.name.lower(), False)
    return tuple((query, told) for query, told in queries.items() if read(_search(query)) == (SEARCH, query))


@lru_cache(maxsize=1 << 12)
def _offers(shop: Shop, goal: Goal, keywords: tuple[str, ...], nouns: Nouns) -> tuple[Offer, ...]:
    """What is offered in a list, without what its page offers earlier for as much."""
    offers: list[Offer] = []
    for index, place in enumerate(listing(shop, keywords)):
        if not sayable(shop.product(place).asin.lower()):
            continue
        number = index // PER_PAGE + 1
        completions = _completions(shop, goal, Page(ITEM, keywords, place=place), nouns)
        if not any(offer.page == number and _as_good(offer.completions, completions) for offer in offers):
            offers.append(Offer(number, place, completions))
    return tuple(offers)


def _as_good(one: Completions, other: Completions) -> bool:
    """Whether the first is worth as much with as few clicks."""
    return all(any(r >= reward and len(v) <= len(values) for r, v in one) for reward, values in other)


@lru_cache(maxsize=1 << 14)
def _completions(shop: Shop, goal: Goal, page: Page, nouns: Nouns) -> Completions:
    """What an article's page is worth: a reward, and the fewest clicks on options for it; each is worth more than the
    one before.

    Option by option, the fewest clicks that satisfy a set of the goal's options: those of the values already chosen for
    nothing, those of another value for a click.
    """
    if page.place is None:
        raise ValueError(f"a {page.kind} shows an article, and this one has none")
    values: dict[str, list[str]] = {}
    for value, target in clickables(shop, page).items():
        if target.option is not None and sayable(value) and satisfied(goal, value):
            values.setdefault(target.option, []).append(value)
    chosen = dict(page.options)
    none = frozenset[int]()
    reached: dict[frozenset[int], tuple[str, ...]] = {none: ()}
    for name in values | chosen:
        kept = satisfied(goal, chosen[name]) if name in chosen else none
        further: dict[frozenset[int], tuple[str, ...]] = {}
        for had, clicks in reached.items():
            steps = [(kept, clicks), *((satisfied(goal, value), (*clicks, value)) for value in values.get(name, []))]
            for more, clicked in steps:
                if len(clicked) < len(further.get(had | more, (*clicked, ""))):
                    further[had | more] = clicked
        reached = further
    appraisal = appraise(shop.product(page.place), goal, nouns)
    best: list[tuple[float, tuple[str, ...]]] = []
    for had, clicks in sorted(reached.items(), key=lambda item: (len(item[1]), -len(item[0]))):
        reward = worth(appraisal, goal, len(had))
        if not best or reward > best[-1][0]:
            best.append((reward, clicks))
    return tuple(best)


def _search(query: str) -> str:
    return f"{SEARCH}[{query}]"


def _click(name: str) -> str:
    return f"{CLICK}[{name.lower()}]"

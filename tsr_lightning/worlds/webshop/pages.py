"""The pages of the shop and the clicks between them, as pure functions that keep the original's oddities.

Source: WebShop (github.com/princeton-nlp/WebShop, Yao et al. 2022, arxiv.org/abs/2207.01206), checked step by step
against records of its behaviour. Oddities kept:

- a search works from every page, after the purchase too; it forgets the product and the options chosen;
- there is always a next page, also past the end;
- a value that two options share belongs to the last of them; one named like a button acts as that button;
- "< Prev" goes by names of pages in the page's address; the query and the options chosen stand there too, so a query
  for "search_results" leads to a wrong page (see `_taken_for`);
- a random listing (`<r>`) is drawn anew each time it is shown.
"""

from collections.abc import Mapping
from functools import lru_cache
from types import MappingProxyType
from typing import Literal, NamedTuple

from tsr_lightning.worlds.webshop.product import Product
from tsr_lightning.worlds.webshop.shop import RANDOM, Shop, listing

Kind = Literal["index", "search_results", "item_page", "item_sub_page", "done"]
INDEX: Kind = "index"
RESULTS: Kind = "search_results"
ITEM: Kind = "item_page"
SUB: Kind = "item_sub_page"
DONE: Kind = "done"

PER_PAGE = 10
SEARCH, CLICK = "search", "click"
BACK, PREV, NEXT, BUY = "Back to Search", "< Prev", "Next >", "Buy Now"
SUB_PAGES = ("Description", "Features", "Reviews")
ATTRIBUTES = "Attributes"  # a sub page that has a button only where the shop shows attributes

_BACK, _PREV, _NEXT, _BUY = BACK.lower(), PREV.lower(), NEXT.lower(), BUY.lower()
_SUB_PAGES = {name.lower(): name for name in (*SUB_PAGES, ATTRIBUTES)}


class Page(NamedTuple):
    """The page shown, with all that the shop remembers of the path to it."""

    kind: Kind = INDEX
    keywords: tuple[str, ...] = ()  # of the last search
    number: int = 0  # of the page of results, from 1; 0 without a search, or before the first page (see `_taken_for`)
    place: int | None = None  # of the product in the catalogue
    options: tuple[tuple[str, str], ...] = ()  # chosen, as (name, value), in the order of the names
    sub: str = ""  # the name of the sub page
    draw: int = 0  # seed of a random listing


class Target(NamedTuple):
    """The target of a click: a product, the value of an option, or else a button."""

    place: int | None = None  # of a product
    option: str | None = None  # the name of the option


_BUTTON = Target()


def verb_and_argument(action: str) -> tuple[str, str] | None:
    """Verb and argument, the argument in lower case; None for anything but `search[...]` and `click[...]`.

    In linear time what the original's pattern `(.+)[(.+)]`, its outer brackets escaped, matches at the head of the
    action: on the first line, up to the last closing bracket, split at the last opening one with something behind it.
    """
    line = action.partition("\n")[0]
    end = line.rfind("]")
    middle = line.rfind("[", 0, max(0, end - 1))
    verb, argument = line[: max(0, middle)], line[middle + 1 : end]
    return (verb, argument.lower()) if verb in (SEARCH, CLICK) else None


def act(shop: Shop, page: Page, action: str, draw: int = 0) -> Page | None:
    """The page after an action; None if the page does not have it.

    Args:
        shop: that the page belongs to.
        page: before.
        action: `search[words]` or `click[a clickable]`.
        draw: seed of the random listing, if this action shows one.
    """
    parsed = verb_and_argument(action)
    if parsed is None:
        return None
    verb, argument = parsed
    if verb == SEARCH:
        return _results(tuple(argument.split(" ")), 1, draw)
    if argument == SEARCH:
        return None  # the button of the search box, without words
    target = clickables(shop, page).get(argument)
    return None if target is None else _click(page, argument, target, draw)


@lru_cache(maxsize=8192)
def clickables(shop: Shop, page: Page) -> Mapping[str, Target]:
    """Returns the clickables of a page in its order; on the index the search button, which by itself does nothing."""
    return MappingProxyType(_CLICKABLES[page.kind](shop, page))


def has_search_bar(page: Page) -> bool:
    return page.kind == INDEX


def listed(shop: Shop, page: Page) -> tuple[tuple[int, ...], int]:
    """The places of the products on a page of results, and the total number of results."""
    places = listing(shop, page.keywords, page.draw)
    return places[max(0, page.number - 1) * PER_PAGE : page.number * PER_PAGE], len(places)


def product_on(shop: Shop, page: Page) -> Product:
    """The product that a page shows."""
    if page.place is None:
        raise ValueError(f"a {page.kind} shows a product, and this one has none")
    return shop.product(page.place)


@lru_cache(maxsize=1 << 14)
def is_expressible(clickable: str) -> bool:
    """True if an action can name the clickable: it is not empty and has no opening bracket and no line break."""
    return verb_and_argument(f"{CLICK}[{clickable}]") == (CLICK, clickable) and clickable != SEARCH


def option_by_value(product: Product) -> dict[str, str]:
    """The option that a click on each value chooses; the last where several have it."""
    return {value: name for name, values in product.options for value in values}


def _on_index(shop: Shop, page: Page) -> dict[str, Target]:
    return {SEARCH: _BUTTON}


def _on_results(shop: Shop, page: Page) -> dict[str, Target]:
    buttons = (_BACK, _PREV, _NEXT) if page.number > 1 else (_BACK, _NEXT)
    products = {shop.product(place).asin.lower(): Target(place) for place in listed(shop, page)[0]}
    return dict.fromkeys(buttons, _BUTTON) | products


def _on_item(shop: Shop, page: Page) -> dict[str, Target]:
    subs = (*SUB_PAGES, ATTRIBUTES) if shop.shows_attributes else SUB_PAGES
    buttons = (_BACK, _PREV, *(name.lower() for name in subs), _BUY)
    values = option_by_value(product_on(shop, page))
    return dict.fromkeys(buttons, _BUTTON) | {value: Target(option=name) for value, name in values.items()}


def _on_sub(shop: Shop, page: Page) -> dict[str, Target]:
    return dict.fromkeys((_BACK, _PREV), _BUTTON)


def _on_done(shop: Shop, page: Page) -> dict[str, Target]:
    return {}


_CLICKABLES = {INDEX: _on_index, RESULTS: _on_results, ITEM: _on_item, SUB: _on_sub, DONE: _on_done}


def _click(page: Page, name: str, target: Target, draw: int) -> Page:
    """The page behind a clickable. The name decides before the target: an option's value "buy now" buys."""
    if name == _BUY:
        return page._replace(kind=DONE, sub="")
    if name == _BACK:
        return Page()
    taken_for = _taken_for(page)
    if name == _NEXT and taken_for == RESULTS:
        return _results(page.keywords, page.number + 1, draw)
    if name == _PREV and taken_for == RESULTS:
        return _results(page.keywords, page.number - 1, draw)
    if name == _PREV and taken_for == SUB:
        return page._replace(kind=ITEM, sub="")
    if name == _PREV:
        return _results(page.keywords, page.number, draw)
    if name in _SUB_PAGES:
        return page._replace(kind=SUB, sub=_SUB_PAGES[name])
    if target.place is not None:
        return page._replace(kind=ITEM, place=target.place, draw=0)
    if target.option is not None:
        return page._replace(options=tuple(sorted({**dict(page.options), target.option: name}.items())))
    raise ValueError(f"{name!r} is no button of a {page.kind}")


def _taken_for(page: Page) -> Kind:
    """The kind that the original takes a page for: the first of three names that it finds in the address."""
    address = [*page.keywords, *(part for option in page.options for part in option)]
    for kind in (RESULTS, ITEM, SUB):
        if kind == page.kind or any(kind in part for part in address):
            return kind
    return page.kind


def _results(keywords: tuple[str, ...], number: int, draw: int) -> Page:
    return Page(RESULTS, keywords, number, draw=draw if keywords[0] == RANDOM else 0)

"""The page as the agent sees it: the visible strings, and the original's "text" mode made of them.

`text` equals the original's "text" mode to the character. Its strings come out of HTML, so what a browser would drop is
dropped: a string of blanks alone vanishes if it has a line break, and becomes empty otherwise.
"""

import json
from collections.abc import Callable
from functools import lru_cache

from tsr_lightning.worlds.webshop.pages import (
    ATTRIBUTES,
    BACK,
    BUY,
    DONE,
    INDEX,
    ITEM,
    NEXT,
    PREV,
    RESULTS,
    SUB,
    SUB_PAGES,
    Page,
    listed,
    product_on,
)
from tsr_lightning.worlds.webshop.product import Product
from tsr_lightning.worlds.webshop.shop import Shop

SEPARATOR = " [SEP] "
_BLANKS = " \n\t\f\r"  # HTML's
_HTML = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&'"}  # as JSON is written into HTML


def text(shop: Shop, page: Page, instruction: str, reward: float = 0.0) -> str:
    """The page as the original's "text" mode shows it.

    Args:
        shop: that the page belongs to.
        page: shown.
        instruction: the goal's.
        reward: of the purchase, which the last page shows.
    """
    if page.kind == DONE:
        return SEPARATOR.join(_done(shop, page, reward))
    head = "WebShop [SEP] " if page.kind == INDEX else ""
    shown = "".join(SEPARATOR + string for string in visible(instruction))
    return f"{head}Instruction:{shown}{SEPARATOR}{SEPARATOR.join(strings(shop, page))}"


def visible(string: str) -> list[str]:
    """The string that a browser shows of a string, or none."""
    if string.strip(_BLANKS):
        return [string.strip()]
    return [""] if string and "\n" not in string else []


def price_tag(product: Product) -> str:
    return " to ".join(f"${price}" for price in product.prices)


@lru_cache(maxsize=8192)
def strings(shop: Shop, page: Page) -> tuple[str, ...]:
    """The visible strings below the instruction, on all pages but the last."""
    return tuple(_STRINGS[page.kind](shop, page))


def _index(shop: Shop, page: Page) -> list[str]:
    return ["Search"]


def _results(shop: Shop, page: Page) -> list[str]:
    places, total = listed(shop, page)
    buttons = [PREV, NEXT] if page.number > 1 else [NEXT]
    shown = [BACK, f"Page {page.number} (Total results: {total})", *buttons]
    for product in map(shop.product, places):
        shown += [*visible(product.asin), *visible(product.title), price_tag(product)]
    return shown


def _item(shop: Shop, page: Page) -> list[str]:
    product = product_on(shop, page)
    shown = [BACK, PREV]
    for name, values in product.options:
        shown += visible(name)
        for value in values:
            shown += visible(value)
    shown += [*visible(product.title), f"Price: {price_tag(product)}", "Rating: N.A.", *SUB_PAGES]
    return [*shown, *([ATTRIBUTES] if shop.shows_attributes else []), BUY]


def _sub(shop: Shop, page: Page) -> list[str]:
    content = _SUB[page.sub](product_on(shop, page))
    return [BACK, PREV, *(string for part in content for string in visible(part))]


def _list_items(points: tuple[str, ...]) -> list[str]:
    """The points of a list, each of which begins with a blank."""
    return [f" {point}" for point in points]


_SUB: dict[str, Callable[[Product], list[str]]] = {
    "Description": lambda product: [product.description],
    "Features": lambda product: _list_items(product.bullets),
    "Reviews": lambda product: [],  # the published files have none
    "Attributes": lambda product: [
        *_list_items(product.attributes),
        product.category,
        product.query,
        product.product_category,
    ],
}
_STRINGS = {INDEX: _index, RESULTS: _results, ITEM: _item, SUB: _sub}


def _done(shop: Shop, page: Page, reward: float) -> list[str]:
    """The page after the purchase. The original hides most of it from people, but not in the text mode."""
    chosen = json.dumps(dict(page.options), sort_keys=True).translate(_HTML)
    bought = ["Purchased", "asin", product_on(shop, page).asin, "options", chosen, "attrs", "None"]
    target = ["asin", "options", "attrs", "price upper", "instuction text", "category", "product category", "query"]
    return [
        "Thank you for shopping with us!",
        "Your code:",
        "None",
        "(Paste it in your MTurk interface.)",
        *bought,
        *("category", "None", "query", "None", "product category", "None", "Target"),
        *target,
        *("Goal", "None", "Reward", "Your score (min 0.0, max 1.0)", f"{reward}", "Reward Details", "None"),
    ]

"""What the shopper reads: the visible strings of a page, and the renderings made of them.

`text` is the original's "text" mode to the character. Its strings come out of HTML, so what a browser would drop is
dropped: a string of nothing but blanks is gone if a line break is among them, and empty otherwise.
"""

import json
from collections.abc import Callable
from functools import lru_cache

from tsr_lightning.envs.webshop.pages import (
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
)
from tsr_lightning.envs.webshop.product import Product
from tsr_lightning.envs.webshop.shop import Shop

SEPARATOR = " [SEP] "
_BLANKS = " \n\t\f\r"  # HTML's
_HTML = {ord(sign): f"\\u{ord(sign):04x}" for sign in "<>&'"}  # as JSON is written into HTML


def text(shop: Shop, page: Page, instruction: str, reward: float = 0.0) -> str:
    """The page as the original's "text" mode shows it.

    Args:
        shop: where.
        page: shown.
        instruction: the goal's.
        reward: of the purchase, which the last page tells.
    """
    if page.kind == DONE:
        return SEPARATOR.join(_done(shop, page, reward))
    before = "WebShop [SEP] " if page.kind == INDEX else ""
    told = "".join(SEPARATOR + said for said in seen(instruction))
    return f"{before}Instruction:{told}{SEPARATOR}{SEPARATOR.join(strings(shop, page))}"


def seen(said: str) -> list[str]:
    """The string that a browser shows of a string, or none."""
    if said.strip(_BLANKS):
        return [said.strip()]
    return [""] if said and "\n" not in said else []


def price_tag(product: Product) -> str:
    return " to ".join(f"${price}" for price in product.prices)


@lru_cache(maxsize=8192)
def strings(shop: Shop, page: Page) -> tuple[str, ...]:
    """What stands below the instruction, on all pages but the last."""
    return tuple(_STRINGS[page.kind](shop, page))


def _index(shop: Shop, page: Page) -> list[str]:
    return ["Search"]


def _results(shop: Shop, page: Page) -> list[str]:
    places, total = listed(shop, page)
    buttons = [PREV, NEXT] if page.number > 1 else [NEXT]
    said = [BACK, f"Page {page.number} (Total results: {total})", *buttons]
    for product in map(shop.product, places):
        said += [*seen(product.asin), *seen(product.title), price_tag(product)]
    return said


def _item(shop: Shop, page: Page) -> list[str]:
    product = _product(shop, page)
    said = [BACK, PREV]
    for name, values in product.options:
        said += seen(name)
        for value in values:
            said += seen(value)
    said += [*seen(product.title), f"Price: {price_tag(product)}", "Rating: N.A.", *SUB_PAGES]
    return [*said, *([ATTRIBUTES] if shop.shows_attributes else []), BUY]


def _sub(shop: Shop, page: Page) -> list[str]:
    told = _SUB[page.sub](_product(shop, page))
    return [BACK, PREV, *(said for part in told for said in seen(part))]


def _listed_points(points: tuple[str, ...]) -> list[str]:
    """The points of a list, each of which begins with a blank."""
    return [f" {point}" for point in points]


_SUB: dict[str, Callable[[Product], list[str]]] = {
    "Description": lambda product: [product.description],
    "Features": lambda product: _listed_points(product.bullets),
    "Reviews": lambda product: [],  # the published files have none
    "Attributes": lambda product: [
        *_listed_points(product.attributes),
        product.category,
        product.query,
        product.product_category,
    ],
}
_STRINGS = {INDEX: _index, RESULTS: _results, ITEM: _item, SUB: _sub}


def _done(shop: Shop, page: Page, reward: float) -> list[str]:
    """The page after buying. The original hides most of it from people, but not from the text mode."""
    chosen = json.dumps(dict(page.options), sort_keys=True).translate(_HTML)
    bought = ["Purchased", "asin", _product(shop, page).asin, "options", chosen, "attrs", "None"]
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


def _product(shop: Shop, page: Page) -> Product:
    if page.place is None:
        raise ValueError(f"a {page.kind} shows an article, and this one has none")
    return shop.product(page.place)

"""What the shop sells and what its customers want. Immutable; knows no page, no search and no file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """One article, cleaned as the original's `load_products` cleans it."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]  # the features
    category: str  # fashion, garden, ...
    query: str  # the search that the article was found by, lower case
    product_category: str  # "A › B › C"
    attributes: tuple[str, ...]  # mined from reviews; never shown in text mode
    options: tuple[tuple[str, tuple[str, ...]], ...]  # (name, values), lower case, in the order of the file
    prices: tuple[float, ...]  # one price, or the ends of a range; what a page shows
    price: float  # what is compared with a goal's limit


@dataclass(frozen=True, slots=True)
class Wish:
    """What a file says that a customer of one article asks for; goals.py makes goals of it."""

    place: int  # of the article in the catalogue
    instruction: str  # without options and price limit
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None = None  # values; None: every combination of the article's options, a goal each
    number: int = 0  # among the wishes for this article


@dataclass(frozen=True, slots=True)
class Goal:
    """What a customer asks for."""

    asin: str  # the article that the goal was made from
    instruction: str  # as told to the shopper, price limit included
    query: str
    name: str
    product_category: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]  # (name, value); the name is "" for a human goal, which names none
    price_limit: float  # in dollars; infinity for none
    weight: float = 1.0

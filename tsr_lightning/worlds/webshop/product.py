"""Products, goals and goal templates. Immutable; knows no page, no search and no file."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Product:
    """A product, cleaned as the original's `load_products` cleans it."""

    asin: str
    title: str
    description: str
    bullets: tuple[str, ...]  # the features
    category: str  # fashion, garden, ...
    query: str  # the search that found the product, lower case
    product_category: str  # "A › B › C"
    attributes: tuple[str, ...]  # mined from reviews; never shown in text mode
    options: tuple[tuple[str, tuple[str, ...]], ...]  # (name, values), lower case, in the order of the file
    prices: tuple[float, ...]  # one price, or the ends of a range; what a page shows
    price: float  # what is compared with a goal's limit


@dataclass(frozen=True, slots=True)
class GoalTemplate:
    """A published instruction for one product, of which goals.py makes goals."""

    place: int  # of the product in the catalogue
    instruction: str  # without options and price limit
    attributes: tuple[str, ...]
    options: tuple[str, ...] | None = None  # values; None: one goal per combination of the product's options
    number: int = 0  # among the templates of this product


@dataclass(frozen=True, slots=True)
class Goal:
    """A shopping goal: an instruction, and the product, options and price limit that it asks for."""

    asin: str  # the product that the goal was made from
    instruction: str  # as the agent reads it, price limit included
    query: str
    name: str
    product_category: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]  # (name, value); the name is "" in human goals, which have values only
    price_limit: float  # in dollars; infinity for none
    weight: float = 1.0

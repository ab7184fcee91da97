"""A shop of 14 simple products and its tasks, for the tests of pages, reward and environment."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.product import Goal, Product
from tsr_lightning.worlds.webshop.shop import Shop
from tsr_lightning.worlds.webshop.tasks import ShoppingTask

NOTHING = Product(
    asin="",
    title="",
    description="",
    bullets=(),
    category="",
    query="",
    product_category="",
    attributes=(),
    options=(),
    prices=(10.0,),
    price=10.0,
)


def product(**parts: Any) -> Product:
    return Product(**{name: parts.get(name, getattr(NOTHING, name)) for name in Product.__dataclass_fields__})


SHIRT = product(
    asin="B0SHIRT001",
    title="Men's Linen Shirt",
    description="A shirt for warm days.",
    bullets=("Machine wash", "", "Button closure"),
    category="fashion",
    query="men's shirts",
    product_category="Clothing › Men › Shirts",
    attributes=("machine wash", "long sleeve"),
    options=(("color", ("navy", "dark navy x", "white")), ("size", ("large", "xx-large", "x[l]"))),
    prices=(19.5, 24.0),
    price=22.0,
)
CANDLE = product(
    asin="B0CANDLE01",
    title="Soy Candle",
    bullets=("",),
    category="garden",
    query="candles",
    product_category="Home › Candles",
    attributes=("soy wax",),
    prices=(7.0,),
    price=7.0,
)
MUGS = [
    product(
        asin=f"B0MUG{number:05}",
        title=f"Mug {number}",
        description="A mug.",
        category="garden",
        query="mugs",
        product_category="Home › Mugs",
        attributes=("dishwasher safe",),
        prices=(5.0 + number,),
        price=5.0 + number,
    )
    for number in range(12)
]
PRODUCTS = (SHIRT, CANDLE, *MUGS)
GOAL = Goal(
    asin=SHIRT.asin,
    instruction="Find me machine wash men's shirts with color: navy, and size: xx-large"
    ", and price lower than 30.00 dollars",
    query="men's shirts",
    name=SHIRT.title,
    product_category=SHIRT.product_category,
    attributes=("machine wash", "long sleeve"),
    options=(("color", "navy"), ("size", "xx-large")),
    price_limit=30.0,
)


def by_words(products: Sequence[Product]) -> Callable[[str], list[int]]:
    """A search for products with a word of the query in the title; more words, higher rank."""

    def search(query: str) -> list[int]:
        words = query.lower().split()
        found = [(-sum(word in p.title.lower().split() for word in words), place) for place, p in enumerate(products)]
        return [place for hits, place in sorted(found) if hits]

    return search


def shop_of(*products: Product, **settings: Any) -> Shop:
    return Shop(Catalogue(products), by_words(products), **settings)


def product_by_asin(catalogue: Catalogue, asin: str) -> Product:
    return next(product for product in catalogue.products if product.asin == asin)


@dataclass(frozen=True)
class SingleTask:
    """Tasks of which there is only one."""

    shop: Shop
    goal: Goal = GOAL

    def numbers(self, seed: int) -> tuple[int, int]:
        return 0, 0

    def task(self, shop: int, goal: int) -> ShoppingTask:
        return ShoppingTask(self.shop, self.goal)

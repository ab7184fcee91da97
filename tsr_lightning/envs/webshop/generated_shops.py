"""The embedded catalogue: shops of made products, and goals of which exactly one product of the shop is right.

A goal is taken from a product only if

- no other product of its shop has all that is asked for within the price limit,
- a dearer one has all but the price and praises itself more, so that every search shows it earlier,
- one or two within the limit have the attributes but not the options, which their own page alone shows: who reads
  titles and prices still has to look and to turn back, but never more often than nine turns allow,
- one within the limit has the options but not the attributes.

So who buys the first result, or does not look at price, options or attributes, mostly buys wrongly.

Each instance has a shop of its own unless told otherwise: then two instances share no product, and what is held out by
its initial state is held out with all its products.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tsr_lightning.envs.validate import whole
from tsr_lightning.envs.webshop.catalogue import Catalogue
from tsr_lightning.envs.webshop.product import Goal
from tsr_lightning.envs.webshop.product_generator import Difficulty, Stock, stocked
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

_TEMPTATIONS = range(1, 3)  # products with attributes and price but not the options
_SHOPS = 100  # tried for one with a goal
_GOALS = 10_000  # products and options tried for a goal of a shop
_REMEMBERED = 512  # shops


@dataclass(frozen=True)
class Mall:
    """All shops, and the instances in them.

    Args:
        difficulties: of shops and goals; each shop is of one of them.
        seed: another seed, other shops.
        shops: how many there are; instances share them by their seed modulo this. None: a shop for every instance.
    """

    difficulties: tuple[Difficulty, ...] = (Difficulty(),)
    seed: int = 0
    shops: int | None = None

    def __post_init__(self) -> None:
        whole("seed", self.seed, at_least=0)
        if self.shops is not None:
            whole("shops", self.shops)

    def instance(self, seed: int) -> tuple[int, int]:
        """The numbers of shop and goal that an environment's seed names."""
        shop = seed if self.shops is None else seed % self.shops
        return shop, some_goal(self._stock(shop), self._difficulty(shop), self._key(shop).fold_in("goal", seed))

    def catalogue(self, shop: int) -> Catalogue:
        """What a shop sells. One object as long as it is remembered, so that an index can be kept with it."""
        return self._stock(shop).catalogue

    def goal(self, shop: int, number: int) -> Goal:
        """A goal of a shop by its number, right or not."""
        return goal_of(self._stock(shop), self._difficulty(shop), number)

    def goals(self, shop: int) -> Iterator[int]:
        """The numbers of all right goals of a shop."""
        return goals(self._stock(shop), self._difficulty(shop))

    def _stock(self, shop: int) -> Stock:
        return make_stock(self._key(shop), self._difficulty(shop))

    def _difficulty(self, shop: int) -> Difficulty:
        return self.difficulties[self._key(shop).fold_in("difficulty").bits() % len(self.difficulties)]

    def _key(self, shop: int) -> Key:
        return Key(0).fold_in("webshop", self.seed, shop)


@lru_cache(maxsize=_REMEMBERED)
def make_stock(key: Key, difficulty: Difficulty) -> Stock:
    """The shop of a key; it has at least one right goal.

    Raises:
        ConfigError: if a bounded number of shops had none.
    """
    for attempt in range(_SHOPS):
        stock = stocked(key.fold_in(attempt), difficulty)
        if next(goals(stock, difficulty), None) is not None:
            return stock
    raise ConfigError(
        f"none of {_SHOPS} shops with products {difficulty.products}, look_alikes {difficulty.look_alikes}, attributes "
        f"{difficulty.attributes} and options {difficulty.options} had a goal: raise look_alikes."
    )


def goals(stock: Stock, difficulty: Difficulty) -> Iterator[int]:
    """The numbers of the right goals of a shop, in order."""
    count = len(stock.catalogue) * difficulty.combinations
    return (number for number in range(count) if _is_right(stock, goal_of(stock, difficulty, number)))


def some_goal(stock: Stock, difficulty: Difficulty, key: Key) -> int:
    """The number of a right goal."""
    count = len(stock.catalogue) * difficulty.combinations
    for index in range(_GOALS):
        number = key.bits(index) % count
        if _is_right(stock, goal_of(stock, difficulty, number)):
            return number
    return next(goals(stock, difficulty))


def goal_of(stock: Stock, difficulty: Difficulty, number: int) -> Goal:
    """The goal of a number: a product, and one of the ways to choose its options."""
    place, choice = divmod(number, difficulty.combinations)
    product = stock.catalogue.products[place]
    chosen = []
    for name, values in product.options:
        choice, index = divmod(choice, len(values))
        chosen.append((name, values[index]))
    limit = float((product.price // difficulty.price_step + 1) * difficulty.price_step)
    options = ", and ".join(f"{name}: {value}" for name, value in chosen)
    return Goal(
        asin=product.asin,
        instruction=(
            f"Find me {', '.join(product.attributes)} {product.query}{options and ' with '}{options}"
            f", and price lower than {limit:.2f} dollars"
        ),
        query=product.query,
        name=product.title,
        product_category=product.product_category,
        attributes=product.attributes,
        options=tuple(chosen),
        price_limit=limit,
    )


def _is_right(stock: Stock, goal: Goal) -> bool:
    """Whether one product alone satisfies the goal, and others tempt (see the module)."""
    attributes, options = frozenset[object](goal.attributes), frozenset[object](goal.options)
    dearer, fitting = list[int](), list[int]()  # how much those praise themselves
    unstocked, plain = 0, False
    for product, has, praise in zip(stock.catalogue.products, stock.has, stock.praise, strict=True):
        within = product.price <= goal.price_limit
        if attributes <= has:
            if options <= has:
                (fitting if within else dearer).append(praise)
            else:
                unstocked += within
        elif within and product.query == goal.query:
            plain |= options <= has
    if len(fitting) != 1 or max(dearer, default=-1) <= fitting[0]:
        return False
    return plain and (unstocked in _TEMPTATIONS or not options)

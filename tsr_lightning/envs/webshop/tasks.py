"""Who comes into which shop: the customers that an environment's seeds name."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple, Protocol

from tsr_lightning.envs.webshop.catalogue import Catalogue
from tsr_lightning.envs.webshop.generated_shops import Mall
from tsr_lightning.envs.webshop.product import Goal
from tsr_lightning.envs.webshop.shop import Shop


class Customer(NamedTuple):
    """A goal, and the shop that it is to be bought in."""

    shop: Shop
    goal: Goal


class Market(Protocol):
    """Customers by number, the same in every process."""

    def numbers(self, seed: int) -> tuple[int, int]:
        """The numbers of shop and goal that a seed names."""
        ...

    def customer(self, shop: int, goal: int) -> Customer: ...


SearchOver = Callable[[Catalogue], Callable[[str], Sequence[int]]]


@dataclass(frozen=True, eq=False)
class OneShop:
    """All goals in one shop, such as that of the published files.

    Args:
        shop: where.
        goals: by number.
        part: numbers of the goals that seeds name, by the seed modulo their count.
    """

    shop: Shop
    goals: Sequence[Goal]
    part: Sequence[int]

    def numbers(self, seed: int) -> tuple[int, int]:
        return 0, self.part[seed % len(self.part)]

    def customer(self, shop: int, goal: int) -> Customer:
        return Customer(self.shop, self.goals[goal])


@dataclass(frozen=True)
class ManyShops:
    """The embedded catalogue's shops.

    Args:
        mall: makes them.
        search_over: makes a search over what a shop sells.
        shows_attributes: whether articles have a page of attributes.
    """

    mall: Mall
    search_over: SearchOver
    shows_attributes: bool

    def numbers(self, seed: int) -> tuple[int, int]:
        return self.mall.instance(seed)

    def customer(self, shop: int, goal: int) -> Customer:
        catalogue = self.mall.catalogue(shop)
        return Customer(_opened(catalogue, self.search_over, self.shows_attributes), self.mall.goal(shop, goal))


@lru_cache(maxsize=512)
def _opened(catalogue: Catalogue, search_over: SearchOver, shows_attributes: bool) -> Shop:
    """One shop object for a catalogue, so that what it lists is remembered; indexed when somebody searches."""
    search = cache(lambda: search_over(catalogue))
    return Shop(catalogue, lambda query: search()(query), shows_attributes)

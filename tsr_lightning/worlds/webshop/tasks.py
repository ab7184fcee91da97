"""Shopping tasks, a shop and a goal each: how an environment's seeds name them."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import NamedTuple, Protocol

from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.generated_shops import GeneratedShops
from tsr_lightning.worlds.webshop.product import Goal
from tsr_lightning.worlds.webshop.shop import Shop


class ShoppingTask(NamedTuple):
    """A goal, and the shop to buy it in."""

    shop: Shop
    goal: Goal


class ShoppingTasks(Protocol):
    """Tasks by number, the same in every process."""

    def numbers(self, seed: int) -> tuple[int, int]:
        """The numbers of shop and goal that a seed names."""
        ...

    def task(self, shop: int, goal: int) -> ShoppingTask: ...


SearchOver = Callable[[Catalogue], Callable[[str], Sequence[int]]]


@dataclass(frozen=True, eq=False)
class SingleShopTasks:
    """All goals in one shop, such as that of the published files.

    Args:
        shop: the only one.
        goals: by number.
        split: numbers of the goals that seeds name, by the seed modulo their count.
    """

    shop: Shop
    goals: Sequence[Goal]
    split: Sequence[int]

    def numbers(self, seed: int) -> tuple[int, int]:
        return 0, self.split[seed % len(self.split)]

    def task(self, shop: int, goal: int) -> ShoppingTask:
        return ShoppingTask(self.shop, self.goals[goal])


@dataclass(frozen=True)
class GeneratedTasks:
    """The goals of generated shops.

    Args:
        shops: the generated shops.
        search_over: makes a search over a shop's catalogue.
        shows_attributes: whether products have a page of attributes.
    """

    shops: GeneratedShops
    search_over: SearchOver
    shows_attributes: bool

    def numbers(self, seed: int) -> tuple[int, int]:
        return self.shops.instance(seed)

    def task(self, shop: int, goal: int) -> ShoppingTask:
        catalogue = self.shops.catalogue(shop)
        return ShoppingTask(_shop(catalogue, self.search_over, self.shows_attributes), self.shops.goal(shop, goal))


@lru_cache(maxsize=512)
def _shop(catalogue: Catalogue, search_over: SearchOver, shows_attributes: bool) -> Shop:
    """One shop object per catalogue, so that its listings are cached; its index is built by the first search."""
    search = cache(lambda: search_over(catalogue))
    return Shop(catalogue, lambda query: search()(query), shows_attributes)

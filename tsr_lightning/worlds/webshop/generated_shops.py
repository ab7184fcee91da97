"""The embedded catalogue: shops of generated products, and goals that exactly one product of the shop satisfies.

A goal is made from a product only if, among the other products of its shop,

- none has everything that the goal names within the price limit;
- a dearer one has everything but the price and more praise in its description, so that every search ranks it higher;
- one or two within the limit have the attributes but not the options, which only their own page shows: an agent that
  reads titles and prices still has to open products and go back, but nine turns are always enough;
- one within the limit has the options but not the attributes.

So an agent that buys the first result, or ignores the price, the options or the attributes, mostly fails.

By default each instance has a shop of its own: two instances share no product, and an instance that is held out by its
initial state is held out with all its products.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from tsr_lightning.envs.validate import whole
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.product import Goal
from tsr_lightning.worlds.webshop.product_generator import Difficulty, GeneratedShop, generate_shop

_OPTION_DISTRACTORS = range(1, 3)  # how many products have the attributes and the price, but not the options
_SHOP_ATTEMPTS = 100  # shops generated until one has a goal
_GOAL_ATTEMPTS = 10_000  # products and options drawn until they make a goal
_CACHED_SHOPS = 512


@dataclass(frozen=True)
class GeneratedShops:
    """All generated shops, and the instances in them.

    Args:
        difficulties: of shops and goals; each shop has one of them.
        seed: another seed, other shops.
        count: how many there are; an instance is in the shop of its seed modulo this. None: one shop per instance.
    """

    difficulties: tuple[Difficulty, ...] = (Difficulty(),)
    seed: int = 0
    count: int | None = None

    def __post_init__(self) -> None:
        whole("WebShopEnv.catalogue_seed", self.seed, at_least=0)
        if self.count is not None:
            whole("WebShopEnv.shops", self.count)

    def instance(self, seed: int) -> tuple[int, int]:
        """The numbers of shop and goal that an environment's seed names."""
        number = seed if self.count is None else seed % self.count
        return number, draw_goal(self.shop(number), self._key(number).fold_in("goal", seed))

    def catalogue(self, number: int) -> Catalogue:
        """The products of a shop; the same object as long as the shop is cached, so that its index can be kept."""
        return self.shop(number).catalogue

    def goal(self, shop: int, number: int) -> Goal:
        """A goal of a shop by its number, valid or not."""
        return numbered_goal(self.shop(shop), number)

    def shop(self, number: int) -> GeneratedShop:
        key = self._key(number)
        return shop_with_goals(key, self.difficulties[key.fold_in("difficulty").bits() % len(self.difficulties)])

    def _key(self, shop: int) -> Key:
        return Key(0).fold_in("webshop", self.seed, shop)


@lru_cache(maxsize=_CACHED_SHOPS)
def shop_with_goals(key: Key, difficulty: Difficulty) -> GeneratedShop:
    """The shop of a key, with at least one valid goal.

    Raises:
        ConfigError: if none of a bounded number of shops has one.
    """
    for attempt in range(_SHOP_ATTEMPTS):
        shop = generate_shop(key.fold_in(attempt), difficulty)
        if next(valid_goals(shop), None) is not None:
            return shop
    remedy = f"none of {_SHOP_ATTEMPTS} shops has a goal, so raise look_alikes."
    raise ConfigError(f"WebShopEnv.difficulty is {difficulty}: {remedy}")


def valid_goals(shop: GeneratedShop) -> Iterator[int]:
    """The numbers of the valid goals of a shop, in order."""
    return (number for number in range(_goal_count(shop)) if _is_valid(shop, numbered_goal(shop, number)))


def draw_goal(shop: GeneratedShop, key: Key) -> int:
    """The number of a valid goal."""
    for index in range(_GOAL_ATTEMPTS):
        number = key.bits(index) % _goal_count(shop)
        if _is_valid(shop, numbered_goal(shop, number)):
            return number
    return next(valid_goals(shop))


def numbered_goal(shop: GeneratedShop, number: int) -> Goal:
    """The goal of a number, which stands for a product and a choice of its options."""
    place, choice = divmod(number, shop.difficulty.combinations)
    product, price_step = shop.catalogue.products[place], shop.difficulty.price_step
    chosen = []
    for name, values in product.options:
        choice, index = divmod(choice, len(values))
        chosen.append((name, values[index]))
    limit = float((product.price // price_step + 1) * price_step)
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


def _goal_count(shop: GeneratedShop) -> int:
    return len(shop.catalogue) * shop.difficulty.combinations


def _is_valid(shop: GeneratedShop, goal: Goal) -> bool:
    """True if exactly one product satisfies the goal, and the shop has its distractors (see the module)."""
    attributes, options = frozenset[object](goal.attributes), frozenset[object](goal.options)
    dearer, matching = list[int](), list[int]()  # amounts of praise
    option_distractors, has_attribute_distractor = 0, False
    for product, features, praise in zip(shop.catalogue.products, shop.features, shop.praise, strict=True):
        affordable = product.price <= goal.price_limit
        if attributes <= features:
            if options <= features:
                (matching if affordable else dearer).append(praise)
            else:
                option_distractors += affordable
        elif affordable and product.query == goal.query:
            has_attribute_distractor |= options <= features
    if len(matching) != 1 or max(dearer, default=-1) <= matching[0]:
        return False
    return has_attribute_distractor and (option_distractors in _OPTION_DISTRACTORS or not options)

"""Generated products: shops of several kinds of product, and look-alikes of each kind. Knows no goal and no search.

A kind is a use and a noun ("hiking boots"). Its look-alikes fall into groups of equal attributes, and so of nearly the
same text. Within a group they differ in price, in the options they offer, and in how much their description praises
them, which searches take for relevance.

Every choice is drawn by key (`Key.uniform`), so a shop is the same in every process and with every version of NumPy.
The strings in `fold_in` are part of the draws: another string, other shops.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TypeVar

from tsr_lightning.envs.validate import whole
from tsr_lightning.errors import require
from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.lexicon import BRANDS, DEPARTMENTS, PRAISE, Department
from tsr_lightning.worlds.webshop.product import Product

T = TypeVar("T")

_GROUP_SIZE = 6  # look-alikes of equal attributes, about
_SPARE_ATTRIBUTES = 2  # attributes of a kind beyond those that one product has
_PRICE_LEVELS = 7  # price steps over which a kind spreads
_BASE_PRICES = 3  # price steps at which a kind may begin

# asins are made of meaningless words, short, and few enough to be tokens of a small vocabulary
_SYLLABLES = tuple(
    tuple(a + b for a in consonants for b in vowels) for consonants, vowels in (("bdkz", "aeiou"), ("flnv", "aiou"))
)
_ASIN_WORDS = tuple(first + second for first in _SYLLABLES[0] for second in _SYLLABLES[1])

_MAX_VALUES = min(len(values) for department in DEPARTMENTS for _, values in department.options)
_MAX_OPTIONS = min(len(department.options) for department in DEPARTMENTS)
_MAX_ATTRIBUTES = min(len(department.attributes) for department in DEPARTMENTS)
_KINDS = tuple(
    (department, use, noun) for department in DEPARTMENTS for noun in department.nouns for use in department.uses
)


@dataclass(frozen=True)
class Difficulty:
    """Sizes of generated shops and goals.

    Args:
        products: in a shop.
        look_alikes: products of each kind; the last kind has those left over.
        attributes: that a product has, its title shows and a goal names.
        options: that a product has, such as color and size, and a goal names.
        option_values: of each option that a product offers; its kind has one more.
        price_step: dollars between one price limit and the next; small steps leave little room below the limit.
    """

    products: int = 120
    look_alikes: int = 24
    attributes: int = 2
    options: int = 2
    option_values: int = 3
    price_step: int = 10

    def __post_init__(self) -> None:
        for name, least in (
            ("products", 2 * _GROUP_SIZE),
            ("look_alikes", 2 * _GROUP_SIZE),
            ("attributes", 1),
            ("options", 0),
            ("option_values", 1),
            ("price_step", 2),
        ):
            whole(f"WebShopEnv.difficulty.{name}", vars(self)[name], at_least=least)
        for name, most in (
            ("attributes", _MAX_ATTRIBUTES - _SPARE_ATTRIBUTES),
            ("options", _MAX_OPTIONS),
            ("option_values", _MAX_VALUES - 1),
        ):
            value = vars(self)[name]
            require(value <= most, f"WebShopEnv.difficulty.{name}", value, f"generated products have at most {most}.")
        require(
            self.kinds <= len(_KINDS),
            "WebShopEnv.difficulty.products",
            self.products,
            f"with look_alikes {self.look_alikes} that makes {self.kinds} kinds of at most {len(_KINDS)}; "
            "raise look_alikes or lower products.",
        )

    @property
    def kinds(self) -> int:
        return -(-self.products // self.look_alikes)

    @property
    def combinations(self) -> int:
        """The number of ways to choose the options of a product."""
        return int(self.option_values**self.options)


@dataclass(frozen=True, slots=True)
class GeneratedShop:
    """The catalogue of a shop, and what decides which goals are valid."""

    difficulty: Difficulty
    catalogue: Catalogue  # of P products
    features: tuple[frozenset[object], ...]  # [P] attributes, and options as (name, value)
    praise: tuple[int, ...]  # [P] sentences of praise in the description


def generate_shop(key: Key, difficulty: Difficulty) -> GeneratedShop:
    """The shop of a key."""
    asins = _asins(key.fold_in("asins"), difficulty.products)
    generated: list[tuple[Product, int]] = []
    for kind, (department, use, noun) in enumerate(_sample(key.fold_in("kinds"), _KINDS, difficulty.kinds)):
        own = asins[len(generated) : len(generated) + difficulty.look_alikes]
        generated += _look_alikes(key.fold_in("shelf", kind), difficulty, department, f"{use} {noun}", own)
    shuffled = _sample(key.fold_in("order"), generated, len(generated))  # equal scores are ranked in this order
    products = tuple(product for product, _ in shuffled)
    features = tuple(
        frozenset[object](product.attributes) | {(name, value) for name, values in product.options for value in values}
        for product in products
    )
    return GeneratedShop(difficulty, Catalogue(products), features, tuple(praise for _, praise in shuffled))


def _look_alikes(
    key: Key, difficulty: Difficulty, department: Department, kind: str, asins: Sequence[str]
) -> Iterator[tuple[Product, int]]:
    """The products of a kind, each with its sentences of praise."""
    attributes_of_kind = _sample(
        key.fold_in("attributes"), department.attributes, difficulty.attributes + _SPARE_ATTRIBUTES
    )
    options_of_kind = [
        (name, _sample(key.fold_in("values", name), values, difficulty.option_values + 1))
        for name, values in department.options[: difficulty.options]
    ]
    # descriptions list all values of the kind, so that no search finds out which product offers which
    all_values = ", ".join(value for _, values in options_of_kind for value in values)
    base = 1 + key.fold_in("base").bits() % _BASE_PRICES
    groups = max(2, min(len(asins) // _GROUP_SIZE, comb(len(attributes_of_kind), difficulty.attributes)))
    attribute_sets = tuple(combinations(attributes_of_kind, difficulty.attributes))
    for group, attributes in enumerate(_sample(key.fold_in("families"), attribute_sets, groups)):
        members = asins[group::groups]
        of_group = key.fold_in("family", group)
        brands = _sample(of_group.fold_in("brands"), BRANDS, len(BRANDS))
        price_levels = _sample(of_group.fold_in("prices"), range(_PRICE_LEVELS), _PRICE_LEVELS)
        praise_ranks = _sample(of_group.fold_in("praise"), range(len(members)), len(members))
        named = f"{' '.join(attributes)} {kind}"
        for member, asin in enumerate(members):
            own = of_group.fold_in("member", member)
            price = (base + price_levels[member % _PRICE_LEVELS]) * difficulty.price_step
            price += 1 + own.fold_in("price").bits() % (difficulty.price_step - 1)
            praise = 1 + min(praise_ranks[member], len(PRAISE) - 1)
            brand = brands[member % len(brands)]
            sentences = [f"The {adjective} {named}." for adjective in PRAISE[:praise]]
            product = Product(
                asin=asin,
                title=f"{brand} {named}",
                description=" ".join([f"Sold by {brand}{all_values and ' in '}{all_values}.", *sentences]),
                bullets=(f"Made by {brand}", *attributes),
                category=department.category,
                query=kind,
                product_category=f"{department.label} › {kind.split()[-1].capitalize()} › {kind.title()}",
                attributes=attributes,
                options=tuple((name, _all_but_one(own.fold_in(name), values)) for name, values in options_of_kind),
                prices=(float(price),),
                price=float(price),
            )
            yield product, praise


def _sample(key: Key, items: Sequence[T], count: int) -> tuple[T, ...]:
    """`count` of the items without repetition, in random order."""
    return tuple(items[place] for place in sorted(range(len(items)), key=key.uniform)[:count])


def _all_but_one(key: Key, values: tuple[str, ...]) -> tuple[str, ...]:
    missing = key.bits() % len(values)
    return values[:missing] + values[missing + 1 :]


def _asins(key: Key, count: int) -> list[str]:
    """`count` different asins out of twice as many, so that small shops have few words to learn."""
    length = 1
    while len(_ASIN_WORDS) ** length < 2 * count:
        length += 1
    found: dict[str, None] = {}
    index = 0
    while len(found) < count:
        number, words = key.bits(index) % (2 * count), []
        for _ in range(length):
            number, word = divmod(number, len(_ASIN_WORDS))
            words.append(_ASIN_WORDS[word])
        found["-".join(words)] = None
        index += 1
    return list(found)

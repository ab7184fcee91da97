"""Made products: shops of kinds, and look-alikes of each kind. Knows no goal and no search.

A kind is a use and a noun ("hiking boots"). Its look-alikes are families of the same attributes, and therefore of
nearly the same text, whose members differ in price, in the options they have in stock, and in how much they praise
themselves, which searches take for relevance.

Every choice is a key's (`Key.uniform`), so a shop is the same in every process and with every version of NumPy.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from math import comb
from typing import TypeVar

from tsr_lightning.envs.validate import whole
from tsr_lightning.envs.webshop.catalogue import Catalogue
from tsr_lightning.envs.webshop.lexicon import BRANDS, DEPARTMENTS, PRAISE, Department
from tsr_lightning.envs.webshop.product import Product
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

T = TypeVar("T")

_FAMILY = 6  # look-alikes of the same attributes, about
_SPARE_ATTRIBUTES = 2  # known to a kind beyond those that one product has
_CELLS = 7  # price steps over which a kind spreads
_BASES = 3  # price steps at which a kind may begin

# what articles are called by: words that mean nothing, short to say, and few enough to be tokens of a small vocabulary
_SYLLABLES = tuple(
    tuple(a + b for a in consonants for b in vowels) for consonants, vowels in (("bdkz", "aeiou"), ("flnv", "aiou"))
)
_NAMES = tuple(first + second for first in _SYLLABLES[0] for second in _SYLLABLES[1])

_VALUES = min(len(values) for department in DEPARTMENTS for _, values in department.options)
_OPTIONS = min(len(department.options) for department in DEPARTMENTS)
_ATTRIBUTES = min(len(department.attributes) for department in DEPARTMENTS)
_KINDS = tuple(
    (department, use, noun) for department in DEPARTMENTS for noun in department.nouns for use in department.uses
)


@dataclass(frozen=True)
class Difficulty:
    """What shops and goals are wanted.

    Args:
        products: in a shop.
        look_alikes: products of each kind; those left over are a kind of fewer.
        attributes: that a product has and its title tells, and that a goal names.
        options: that a product has, such as color and size, and that a goal names.
        option_values: of each option that a product has in stock; one more is stocked by others of the kind.
        price_step: dollars between one price limit and the next; small steps leave little room below the limit.
    """

    products: int = 120
    look_alikes: int = 24
    attributes: int = 2
    options: int = 2
    option_values: int = 3
    price_step: int = 10

    def __post_init__(self) -> None:
        whole("products", self.products, at_least=2 * _FAMILY)
        whole("look_alikes", self.look_alikes, at_least=2 * _FAMILY)
        whole("attributes", self.attributes)
        whole("options", self.options, at_least=0)
        whole("option_values", self.option_values)
        whole("price_step", self.price_step, at_least=2)
        for name, most in (
            ("attributes", _ATTRIBUTES - _SPARE_ATTRIBUTES),
            ("options", _OPTIONS),
            ("option_values", _VALUES - 1),
        ):
            if vars(self)[name] > most:
                raise ConfigError(f"{name} is {vars(self)[name]}: made products have at most {most}.")
        if self.kinds > len(_KINDS):
            raise ConfigError(
                f"products is {self.products} and look_alikes {self.look_alikes}, which makes {self.kinds} kinds: "
                f"there are names for {len(_KINDS)}, so raise look_alikes or lower products."
            )

    @property
    def kinds(self) -> int:
        return -(-self.products // self.look_alikes)

    @property
    def combinations(self) -> int:
        """Ways to choose the options of one product."""
        return int(self.option_values**self.options)


@dataclass(frozen=True, slots=True)
class Stock:
    """The catalogue of one shop, with what its goals are judged by."""

    catalogue: Catalogue  # of P products
    has: tuple[frozenset[object], ...]  # [P] attributes, and options as (name, value)
    praise: tuple[int, ...]  # [P] how often a product recommends itself


def stocked(key: Key, difficulty: Difficulty) -> Stock:
    """The shop of a key."""
    asins = _asins(key.fold_in("asins"), difficulty.products)
    products: list[Product] = []
    praise: list[int] = []
    for shelf, (department, use, noun) in enumerate(_pick(key.fold_in("kinds"), _KINDS, difficulty.kinds)):
        count = min(difficulty.look_alikes, difficulty.products - len(products))
        own = asins[len(products) : len(products) + count]
        for product, loud in _shelf(key.fold_in("shelf", shelf), difficulty, department, f"{use} {noun}", own):
            products.append(product)
            praise.append(loud)
    order = _pick(key.fold_in("order"), range(len(products)), len(products))  # equal scores are ranked in this order
    shuffled = tuple(products[place] for place in order)
    has = tuple(
        frozenset[object](product.attributes) | {(name, value) for name, values in product.options for value in values}
        for product in shuffled
    )
    return Stock(Catalogue(shuffled), has, tuple(praise[place] for place in order))


def _shelf(
    key: Key, difficulty: Difficulty, department: Department, kind: str, asins: Sequence[str]
) -> Iterator[tuple[Product, int]]:
    """The look-alikes of a kind, each with how often it recommends itself."""
    known = _pick(key.fold_in("attributes"), department.attributes, difficulty.attributes + _SPARE_ATTRIBUTES)
    stocks = [
        (name, _pick(key.fold_in("values", name), values, difficulty.option_values + 1))
        for name, values in department.options[: difficulty.options]
    ]
    base = 1 + key.fold_in("base").bits() % _BASES
    families = max(2, min(len(asins) // _FAMILY, comb(len(known), difficulty.attributes)))
    sets = _pick(key.fold_in("families"), tuple(combinations(known, difficulty.attributes)), families)
    for family, attributes in enumerate(sets):
        members = asins[family::families]
        own = key.fold_in("family", family)
        brands = _pick(own.fold_in("brands"), BRANDS, len(BRANDS))
        cells = _pick(own.fold_in("prices"), range(_CELLS), _CELLS)
        louds = _pick(own.fold_in("praise"), range(len(members)), len(members))
        for member, asin in enumerate(members):
            mine = own.fold_in("member", member)
            price = (base + cells[member % _CELLS]) * difficulty.price_step
            price += 1 + mine.fold_in("price").bits() % (difficulty.price_step - 1)
            options = tuple((name, _all_but_one(mine.fold_in(name), values)) for name, values in stocks)
            loud = 1 + min(louds[member], len(PRAISE) - 1)
            brand = brands[member % len(brands)]
            told = f"{' '.join(attributes)} {kind}"
            # all values of the kind, so that no search can tell who has which in stock
            choice = ", ".join(value for _, values in stocks for value in values)
            praises = [f"The {word} {told}." for word in PRAISE[:loud]]
            product = Product(
                asin=asin,
                title=f"{brand} {told}",
                description=" ".join([f"Sold by {brand}{choice and ' in '}{choice}.", *praises]),
                bullets=(f"Made by {brand}", *attributes),
                category=department.category,
                query=kind,
                product_category=f"{department.label} › {kind.split()[-1].capitalize()} › {kind.title()}",
                attributes=attributes,
                options=options,
                prices=(float(price),),
                price=float(price),
            )
            yield product, loud


def _pick(key: Key, items: Sequence[T], count: int) -> tuple[T, ...]:
    """`count` of the items without repetition, in random order."""
    return tuple(items[place] for place in sorted(range(len(items)), key=key.uniform)[:count])


def _all_but_one(key: Key, values: tuple[str, ...]) -> tuple[str, ...]:
    gone = key.bits() % len(values)
    return values[:gone] + values[gone + 1 :]


def _asins(key: Key, count: int) -> list[str]:
    """`count` different ones of twice as many, so that small shops have few names to learn."""
    length = 1
    while len(_NAMES) ** length < 2 * count:
        length += 1
    found: dict[str, None] = {}
    index = 0
    while len(found) < count:
        number, words = key.bits(index) % (2 * count), []
        for _ in range(length):
            number, word = divmod(number, len(_NAMES))
            words.append(_NAMES[word])
        found["-".join(words)] = None
        index += 1
    return list(found)

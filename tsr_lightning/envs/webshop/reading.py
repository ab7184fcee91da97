"""WebShop's published files as a Catalogue: items_shuffle*.json, items_ins_v2*.json and items_human_ins.json, any size.

Records are read, cleaned and packed one at a time, so that the 1.18 million products of the full set fit into memory
(benchmarks/webshop_search.py measures how). Nothing is downloaded: the paths are the user's.
"""

import marshal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from tsr_lightning.envs.webshop.catalogue import Catalogue, Packed
from tsr_lightning.envs.webshop.cleaning import (
    Unusable,
    asin_of,
    attributes_of,
    human_wishes_of,
    plain_text,
    product_of,
    text,
    wish_of,
)
from tsr_lightning.envs.webshop.json_stream import elements, pairs
from tsr_lightning.envs.webshop.product import Product, Wish
from tsr_lightning.errors import ConfigError

_ASKED: Final = ("attributes", "instruction", "instruction_attributes")  # all that is kept of items_ins_v2*.json
_product_fields = attrgetter(*(part.name for part in fields(Product)))
_wish_fields = attrgetter(*(part.name for part in fields(Wish)))


@dataclass(frozen=True)
class Account:
    """What became of the records of the files."""

    read: int  # records in the file of products
    kept: int
    noted: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # what -> (how often, where first)

    def __str__(self) -> str:
        told = [f"{count} {what} (first: {where})" for what, (count, where) in self.noted.items()]
        return "; ".join([f"{self.kept} of {self.read} products are in the shop", *told])


def read_catalogue(
    products: str | Path,
    attributes: str | Path | None,
    human: str | Path | None = None,
    *,
    most: int | None = None,
    markup: bool = True,
) -> tuple[Catalogue, Account]:
    """What the files hold, in the order of the file of products; read once in a process while they stay the same.

    Args:
        products: items_shuffle*.json, or a .gz of it.
        attributes: items_ins_v2*.json, with the attributes and the synthetic instructions; None for none.
        human: items_human_ins.json, with the instructions that people wrote; None for none.
        most: reads the first so many products of the file and no more, as the original's `num_products`.
        markup: whether HTML in the products' texts stays, as in the original, or is taken out.

    Raises:
        ConfigError: one sentence with the file, the position and the remedy.
    """
    others = [None if path is None else _dated(path) for path in (attributes, human)]
    return _read(_dated(products), *others, most, markup)


def _dated(path: str | Path) -> tuple[Path, int]:
    """A file and the time of its last change, so that an edited file is read anew."""
    try:
        return Path(path), Path(path).stat().st_mtime_ns
    except OSError as error:
        raise ConfigError(
            f"{path}: cannot be read ({error.strerror}); give the path of one of WebShop's published files."
        ) from None


@lru_cache(maxsize=2)
def _read(
    products: tuple[Path, int],
    attributes: tuple[Path, int] | None,
    human: tuple[Path, int] | None,
    most: int | None,
    markup: bool,
) -> tuple[Catalogue, Account]:
    asked = {} if attributes is None else {asin: marshal.dumps(record) for asin, record in _asked(attributes[0])}
    by_people = {} if human is None else dict(pairs(human[0]))
    shop = _Shop(asked, by_people, markup)
    path = products[0]
    for number, record in enumerate(elements(path), start=1):
        if most is not None and number > most:
            break
        shop.add(number, record)
    if not shop.products:
        raise ConfigError(f"{path}: holds no product that can be sold ({shop.account}); give items_shuffle*.json.")
    if most is None:
        for asin in [*asked, *by_people]:
            shop.note(f"products in the other files that {path.name} lacks, left out", asin)
    return shop.catalogue, shop.account


def _asked(path: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    for asin, record in pairs(path):
        whole = isinstance(record, dict)
        yield asin, {key: record[key] for key in _ASKED if key in record} if whole else None


class _Shop:
    """The catalogue as far as it has been read.

    Args:
        asked: of items_ins_v2*.json by asin, packed; what has been used is taken out, to free its memory.
        by_people: of items_human_ins.json by asin, likewise.
        markup: whether HTML stays.
    """

    def __init__(self, asked: dict[str, bytes], by_people: dict[str, Any], markup: bool) -> None:
        self.asked, self.by_people, self.say = asked, by_people, text if markup else plain_text
        self.products, self.wishes, self.human = Packed(Product), Packed(Wish), Packed(Wish)
        self.asins: set[str] = set()
        self.noted: dict[str, tuple[int, str]] = {}
        self.read = 0

    def add(self, number: int, record: object) -> None:
        self.read = number
        note = partial(self.note, where=f"element {number}")
        try:
            asin = asin_of(record)
            if asin in self.asins:
                raise Unusable("with the asin of an earlier one")
            self.asins.add(asin)
            packed = self.asked.pop(asin, None)
            asked = None if packed is None else marshal.loads(packed)
            product = product_of(record, attributes_of(asked), note, self.say)  # type: ignore[arg-type]
        except Unusable as problem:
            note(f"products {problem}, skipped")
            return
        place = len(self.products)
        self.products.append(_product_fields(product))
        if wish := wish_of(place, asked, note):
            self.wishes.append(_wish_fields(wish))
        for told in human_wishes_of(place, self.by_people.pop(asin, ()), note):
            self.human.append(_wish_fields(told))

    def note(self, what: str, where: str) -> None:
        count, first = self.noted.get(what, (0, where))
        self.noted[what] = count + 1, first

    @property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.products, self.wishes, self.human)

    @property
    def account(self) -> Account:
        return Account(self.read, len(self.products), dict(self.noted))

"""WebShop's published files as a Catalogue: items_shuffle*.json, items_ins_v2*.json and items_human_ins.json, any size.

Records are read, cleaned and packed one at a time, so that the 1.18 million products of the full set fit into memory
(measured by benchmarks/webshop_search.py). Nothing is downloaded: the paths are the user's.
"""

import marshal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path
from typing import Any, Final

from tsr_lightning.errors import ConfigError
from tsr_lightning.worlds.webshop.catalogue import Catalogue, PackedRecords
from tsr_lightning.worlds.webshop.cleaning import (
    InvalidRecord,
    asin_of,
    attributes_of,
    human_templates_of,
    product_of,
    template_of,
)
from tsr_lightning.worlds.webshop.json_stream import elements, pairs
from tsr_lightning.worlds.webshop.product import GoalTemplate, Product

_KEPT_KEYS: Final = ("attributes", "instruction", "instruction_attributes")  # of a record of items_ins_v2*.json
_product_fields = attrgetter(*(part.name for part in fields(Product)))
_template_fields = attrgetter(*(part.name for part in fields(GoalTemplate)))


@dataclass(frozen=True)
class ReadReport:
    """Counts of the records that were read, kept and repaired."""

    records: int  # in the file of products
    kept: int
    notes: Mapping[str, tuple[int, str]] = field(default_factory=dict)  # what -> (how often, where first)

    def __str__(self) -> str:
        notes = [f"{count} {what} (first: {where})" for what, (count, where) in self.notes.items()]
        return "; ".join([f"{self.kept} of {self.records} products are in the shop", *notes])


def read_catalogue(
    products: str | Path,
    attributes: str | Path | None,
    human: str | Path | None = None,
    *,
    limit: int | None = None,
) -> tuple[Catalogue, ReadReport]:
    """The catalogue of the files, in the order of the file of products; cached until a file changes.

    Args:
        products: items_shuffle*.json, or a .gz of it.
        attributes: items_ins_v2*.json, with the attributes and the synthetic instructions; None for none.
        human: items_human_ins.json, with the instructions that people wrote; None for none.
        limit: reads the first so many products of the file, as the original's `num_products`.

    Raises:
        ConfigError: one sentence with the file, the position and the remedy.
    """
    others = [None if path is None else _dated(path) for path in (attributes, human)]
    return _read(_dated(products), *others, limit)


def _dated(path: str | Path) -> tuple[Path, int]:
    """A file and the time of its last change, so that an edited file is read again."""
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
    limit: int | None,
) -> tuple[Catalogue, ReadReport]:
    synthetic = {} if attributes is None else {asin: marshal.dumps(kept) for asin, kept in _kept(attributes[0])}
    builder = _CatalogueBuilder(synthetic, {} if human is None else dict(pairs(human[0])))
    path = products[0]
    for number, record in enumerate(elements(path), start=1):
        if limit is not None and number > limit:
            break
        builder.add(number, record)
    if not builder.products:
        raise ConfigError(f"{path}: holds no valid product ({builder.report}); give items_shuffle*.json.")
    if limit is None:
        for asin in [*builder.synthetic, *builder.human]:
            builder.note(f"products in the other files that {path.name} lacks, left out", asin)
    return builder.catalogue, builder.report


def _kept(path: Path) -> Iterator[tuple[str, dict[str, Any] | None]]:
    for asin, record in pairs(path):
        yield asin, {key: record[key] for key in _KEPT_KEYS if key in record} if isinstance(record, dict) else None


class _CatalogueBuilder:
    """Adds products record by record.

    Args:
        synthetic: records of items_ins_v2*.json by asin, packed; a used one is removed, which frees its memory.
        human: records of items_human_ins.json by asin, likewise.
    """

    def __init__(self, synthetic: dict[str, bytes], human: dict[str, Any]) -> None:
        self.synthetic, self.human = synthetic, human
        self.products = PackedRecords(Product)
        self.templates, self.human_templates = PackedRecords(GoalTemplate), PackedRecords(GoalTemplate)
        self.asins: set[str] = set()
        self.notes: dict[str, tuple[int, str]] = {}
        self.records = 0

    def add(self, number: int, record: object) -> None:
        self.records = number
        note = partial(self.note, where=f"element {number}")
        try:
            asin = asin_of(record)
            if asin in self.asins:
                raise InvalidRecord("with the asin of an earlier one")
            self.asins.add(asin)
            packed = self.synthetic.pop(asin, None)
            synthetic = None if packed is None else marshal.loads(packed)
            product = product_of(record, attributes_of(synthetic), note)  # type: ignore[arg-type]
        except InvalidRecord as problem:
            note(f"products {problem}, skipped")
            return
        place = len(self.products)
        self.products.append(_product_fields(product))
        if template := template_of(place, synthetic, note):
            self.templates.append(_template_fields(template))
        for template in human_templates_of(place, self.human.pop(asin, ()), note):
            self.human_templates.append(_template_fields(template))

    def note(self, what: str, where: str) -> None:
        count, first = self.notes.get(what, (0, where))
        self.notes[what] = count + 1, first

    @property
    def catalogue(self) -> Catalogue:
        return Catalogue(self.products, self.templates, self.human_templates)

    @property
    def report(self) -> ReadReport:
        return ReadReport(self.records, len(self.products), dict(self.notes))

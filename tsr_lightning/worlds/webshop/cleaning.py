"""Published records as products and goal templates: pure functions, one record at a time.

A field is read as the original's `load_products` reads it (princeton-nlp/WebShop, web_agent_site/engine/engine.py),
except that

- the price of a product with a price range is drawn by key; the original draws it from an unseeded generator;
- control characters and halves of surrogate pairs are replaced, and each such repair is noted. HTML stays, as in the
  original, which shows and indexes it;
- where the original raises (no bullet, no image, a price without digits), reading goes on, with a note.
"""

import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from sys import intern
from typing import Any, Final

from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.product import GoalTemplate, Product

UNKNOWN_PRICE: Final = 100.0  # dollars; the original's for a product without one
NO_ATTRIBUTES: Final = ("DUMMY_ATTR",)  # the original's for a product that the attributes' file leaves out
MAX_ASIN_LENGTH: Final = 10
_INVALID = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_SURROGATE = re.compile("[\ud800-\udfff]")
_NO_PRICE = re.compile(r"[^\d.]")

Note = Callable[[str], None]  # called with the description of a repair


class InvalidRecord(ValueError):
    """A record that makes no product; its message fits between "products " and ", skipped"."""


def text(value: object, note: Note) -> str:
    """A field's text without invalid characters."""
    if not isinstance(value, str):
        if value is not None and value != []:
            note("fields that are no text, emptied")
        return ""
    if not _INVALID.search(value):
        return value
    note("texts with control characters, replaced")
    return _INVALID.sub(" ", _SURROGATE.sub("\ufffd", value))


def asin_of(record: object) -> str:
    """The asin of a record.

    Raises:
        InvalidRecord: if it has none that the original would keep.
    """
    if not isinstance(record, Mapping):
        raise InvalidRecord("not an object")
    asin = record.get("asin")
    if not isinstance(asin, str) or not asin.strip() or asin == "nan" or len(asin) > MAX_ASIN_LENGTH:
        raise InvalidRecord("without a usable asin")
    if _INVALID.search(asin):
        raise InvalidRecord("without a usable asin")
    return asin


def product_of(record: Mapping[str, Any], attributes: tuple[str, ...], note: Note) -> Product:
    """The product of a record of items_shuffle*.json, whose asin is valid.

    Raises:
        InvalidRecord: if it has no name.
    """
    if not isinstance(record.get("name"), str):
        raise InvalidRecord("without a name")
    bullets = record.get("small_description")
    prices = prices_of(record.get("pricing"), note)
    return Product(
        asin=record["asin"],
        title=text(record["name"], note),  # may be empty: one of the published sample is
        description=text(record.get("full_description"), note),
        bullets=tuple(text(bullet, note) for bullet in (bullets if isinstance(bullets, list) else [bullets])),
        category=intern(text(record.get("category"), note)),
        query=intern(text(record.get("query"), note).lower().strip()),
        product_category=intern(text(record.get("product_category"), note)),
        attributes=attributes,
        options=options_of(record.get("customization_options"), note),
        prices=prices,
        price=price_of(record["asin"], prices),
    )


def prices_of(pricing: object, note: Note) -> tuple[float, ...]:
    """The price "$12.5", or the two ends of the range "$3.78$11.38", in dollars."""
    if not pricing:
        note(f"products without a price, taken as ${UNKNOWN_PRICE}")
        return (UNKNOWN_PRICE,)
    found = [_NO_PRICE.sub("", part) for part in pricing.split("$")[1:]] if isinstance(pricing, str) else []
    try:
        prices = tuple(float(Decimal(part)) for part in found[:2])
    except InvalidOperation:
        prices = ()
    if not prices:
        note(f"prices that cannot be read, taken as ${UNKNOWN_PRICE}")
    return prices or (UNKNOWN_PRICE,)


def price_of(asin: str, prices: tuple[float, ...]) -> float:
    """The price that counts: a range's is drawn between its ends, the same in every process."""
    if len(prices) == 1:
        return prices[0]
    low, high = prices
    return low + (high - low) * Key(0).fold_in("webshop", "price", asin).uniform()


def options_of(customization: object, note: Note) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """{name: [{"value": ...}, ...]} as (name, values), both in lower case; of equal names the last one counts."""
    if not customization:
        return ()
    if not isinstance(customization, Mapping):
        note("options that cannot be read, left out")
        return ()
    options: dict[str, tuple[str, ...]] = {}
    for name, contents in customization.items():
        if contents is None:
            continue
        if not isinstance(contents, list):
            note("options that cannot be read, left out")
            continue
        values = [content.get("value") if isinstance(content, Mapping) else None for content in contents]
        if not all(isinstance(value, str) for value in values):
            note("options that cannot be read, left out")
        cleaned = [text(value, note).strip().replace("/", " | ").lower() for value in values if isinstance(value, str)]
        options[intern(text(name, note).lower())] = tuple(cleaned)
    return tuple(options.items())


def attributes_of(record: object) -> tuple[str, ...]:
    """The attributes in a record of items_ins_v2*.json."""
    if not isinstance(record, Mapping) or "attributes" not in record:
        return NO_ATTRIBUTES
    return _strings(record["attributes"])


def template_of(place: int, record: object, note: Note) -> GoalTemplate | None:
    """The template of a record of items_ins_v2*.json, or None where it has no instruction."""
    if not isinstance(record, Mapping) or record.get("instruction") is None:
        return None
    instruction, attributes = text(record["instruction"], note), _strings(record.get("instruction_attributes"))
    if not instruction.strip() or not attributes:
        note("instructions without text or attributes, left out")
        return None
    return GoalTemplate(place, instruction, attributes)


def human_templates_of(place: int, records: object, note: Note) -> tuple[GoalTemplate, ...]:
    """The templates of one product in items_human_ins.json; none without attributes, as in the original."""
    found = []
    for number, record in enumerate(records if isinstance(records, list) else []):
        if not isinstance(record, Mapping):
            note("human instructions that are no objects, left out")
            continue
        attributes = _strings(record.get("instruction_attributes"))
        if not attributes:
            note("human instructions without attributes, left out")
            continue
        options = _strings(record.get("instruction_options"))
        found.append(GoalTemplate(place, text(record.get("instruction"), note), attributes, options, number))
    return tuple(found)


def _strings(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        return ()
    return tuple(intern(_INVALID.sub(" ", value)) for value in values if isinstance(value, str))

"""A published record made into a Product or a Wish: pure functions, one record at a time.

What is read from a field is what the original's `load_products` reads from it (princeton-nlp/WebShop,
web_agent_site/engine/engine.py), with these departures, each counted where it happens:

- A product of range price gets its one price from a key, never from a generator that nobody seeded.
- Characters that are no text (control characters, halves of surrogate pairs) are replaced. Markup stays as it is, as
  the original shows it to the shopper and indexes it, unless told otherwise.
- Where the original would end with an exception (no bullet, no image, a price without digits), we go on without.
"""

import html
import re
from collections.abc import Callable, Mapping
from decimal import Decimal, InvalidOperation
from sys import intern
from typing import Any, Final

from tsr_lightning.envs.webshop.product import Product, Wish
from tsr_lightning.rng import Key

UNKNOWN_PRICE: Final = 100.0  # dollars; the original's for a product without one
NO_ATTRIBUTES: Final = ("DUMMY_ATTR",)  # the original's for a product that the attributes' file leaves out
LONGEST_ASIN: Final = 10
_NO_TEXT = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_HALF = re.compile("[\ud800-\udfff]")
_TAG = re.compile(r"<!--.*?-->|</?[a-zA-Z][^<>]*>", re.DOTALL)
_MARKUP = re.compile(rf"{_TAG.pattern}|&#?\w+;", re.DOTALL)
_NO_PRICE = re.compile(r"[^\d.]")

Note = Callable[[str], None]  # takes the name of something that was mended
Say = Callable[[object, Note], str]  # a field's text: `text`, or `plain_text` to take HTML out


class Unusable(ValueError):
    """A record that cannot be sold; says why, in words that fit behind "skipped: "."""


def text(value: object, note: Note) -> str:
    """A field's text without what is no text."""
    if not isinstance(value, str):
        if value is not None and value != []:
            note("fields that are no text, emptied")
        return ""
    if not _NO_TEXT.search(value):
        return value
    note("texts with control characters, replaced")
    return _NO_TEXT.sub(" ", _HALF.sub("\ufffd", value))


def plain(value: str) -> str:
    """Text without HTML: tags and comments left out, entities resolved, blanks joined. Other text stays as it is."""
    if not _MARKUP.search(value):
        return value
    return " ".join(_NO_TEXT.sub(" ", html.unescape(_TAG.sub(" ", value))).split())


def plain_text(value: object, note: Note) -> str:
    return plain(text(value, note))


def asin_of(record: object) -> str:
    """The asin by which a record is known.

    Raises:
        Unusable: if it has none that the original would keep.
    """
    if not isinstance(record, Mapping):
        raise Unusable("not an object")
    asin = record.get("asin")
    if not isinstance(asin, str) or not asin.strip() or asin == "nan" or len(asin) > LONGEST_ASIN:
        raise Unusable("without a usable asin")
    if _NO_TEXT.search(asin):
        raise Unusable("without a usable asin")
    return asin


def product_of(record: Mapping[str, Any], attributes: tuple[str, ...], note: Note, say: Say = text) -> Product:
    """A record of items_shuffle*.json, whose asin is known to be good.

    Raises:
        Unusable: if it has no name.
    """
    if not isinstance(record.get("name"), str):
        raise Unusable("without a name")
    bullets = record.get("small_description")
    prices = prices_of(record.get("pricing"), note)
    return Product(
        asin=record["asin"],
        title=say(record["name"], note),  # may be empty: one of the published thousand is
        description=say(record.get("full_description"), note),
        bullets=tuple(say(bullet, note) for bullet in (bullets if isinstance(bullets, list) else [bullets])),
        category=intern(text(record.get("category"), note)),
        query=intern(text(record.get("query"), note).lower().strip()),
        product_category=intern(text(record.get("product_category"), note)),
        attributes=attributes,
        options=options_of(record.get("customization_options"), note, say),
        prices=prices,
        price=price_of(record["asin"], prices),
    )


def prices_of(pricing: object, note: Note) -> tuple[float, ...]:
    """Read "$12.5" or "$3.78$11.38" as one price or the two ends of a range, in dollars."""
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
    """What a product costs at the till: a range's is drawn between its ends, the same in every process."""
    if len(prices) == 1:
        return prices[0]
    low, high = prices
    return low + (high - low) * Key(0).fold_in("webshop", "price", asin).uniform()


def options_of(customization: object, note: Note, say: Say = text) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """{name: [{"value": ...}, ...]} as (name, values), both in lower case; of names alike the last one counts."""
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
        cleaned = [say(value, note).strip().replace("/", " | ").lower() for value in values if isinstance(value, str)]
        options[intern(say(name, note).lower())] = tuple(cleaned)
    return tuple(options.items())


def attributes_of(record: object) -> tuple[str, ...]:
    """The attributes in a record of items_ins_v2*.json."""
    if not isinstance(record, Mapping) or "attributes" not in record:
        return NO_ATTRIBUTES
    return _words(record["attributes"])


def wish_of(place: int, record: object, note: Note) -> Wish | None:
    """What a record of items_ins_v2*.json asks for, or None where it asks for nothing."""
    if not isinstance(record, Mapping) or record.get("instruction") is None:
        return None
    instruction, attributes = text(record["instruction"], note), _words(record.get("instruction_attributes"))
    if not instruction.strip() or not attributes:
        note("instructions without text or attributes, left out")
        return None
    return Wish(place, instruction, attributes)


def human_wishes_of(place: int, records: object, note: Note) -> tuple[Wish, ...]:
    """What people asked of one product in items_human_ins.json; those without attributes are left out, as ever."""
    found = []
    for number, record in enumerate(records if isinstance(records, list) else []):
        if not isinstance(record, Mapping):
            note("human instructions that are no objects, left out")
            continue
        attributes = _words(record.get("instruction_attributes"))
        if not attributes:
            note("human instructions without attributes, left out")
            continue
        options = _words(record.get("instruction_options"))
        found.append(Wish(place, text(record.get("instruction"), note), attributes, options, number))
    return tuple(found)


def _words(values: object) -> tuple[str, ...]:
    if not isinstance(values, list):
        return ()
    return tuple(intern(_NO_TEXT.sub(" ", value)) for value in values if isinstance(value, str))

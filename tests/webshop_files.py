"""Products and goals written as WebShop's published files, the inverse of reading them."""

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tsr_lightning.worlds.webshop.product import Goal, Product

PRODUCTS, ATTRIBUTES, HUMAN = "items_shuffle.json", "items_ins_v2.json", "items_human_ins.json"


def publish(folder: Path, products: Sequence[Product], goals: Iterable[Goal] = ()) -> None:
    """Writes the three files of a catalogue.

    Each product gets a synthetic instruction, which readers combine with every choice of its options and with a price
    limit of their own. `goals` are written as human instructions, without their limits.
    """
    synthetic = {product.asin: synthetic_record(product) for product in products}
    human: dict[str, list[dict[str, Any]]] = {}
    for goal in goals:
        human.setdefault(goal.asin, []).append(human_record(goal))
    for name, content in (
        (PRODUCTS, [product_record(product) for product in products]),
        (ATTRIBUTES, synthetic),
        (HUMAN, human),
    ):
        (folder / name).write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")


def product_record(product: Product) -> dict[str, Any]:
    """An entry of items_shuffle.json."""
    return {
        "asin": product.asin,
        "name": product.title,
        "category": product.category,
        "query": product.query,
        "product_category": product.product_category,
        "full_description": product.description,
        "small_description": list(product.bullets),
        "pricing": "".join(f"${price}" for price in product.prices),
        "customization_options": {
            name: [{"value": value, "image": None} for value in values] for name, values in product.options
        },
        "images": [""],
    }


def synthetic_record(product: Product) -> dict[str, Any]:
    """An entry of items_ins_v2.json."""
    attributes = list(product.attributes)
    instruction = f"Find me {', '.join(attributes)} {product.query}"
    return {"attributes": attributes, "instruction": instruction, "instruction_attributes": attributes}


def human_record(goal: Goal) -> dict[str, Any]:
    """One of a product's entries of items_human_ins.json."""
    return {
        "asin": goal.asin,
        "instruction": goal.instruction.partition(", and price lower than")[0],
        "attributes": list(goal.attributes),
        "options": [f"{name}: {value}" for name, value in goal.options],
        "instruction_attributes": list(goal.attributes),
        "instruction_options": [value for _, value in goal.options],
    }

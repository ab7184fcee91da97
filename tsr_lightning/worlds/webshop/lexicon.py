"""The words of generated products: few, and distinguished by the reward's fuzzy matching.

No attribute is part of another or of a kind, and no two option values match each other, or the reward would confuse
them (tests/worlds/test_webshop_generated_shops.py checks every pair). Colours are single words that the reward's colour
table leaves as they are.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Department:
    """The vocabulary of a department. A kind of product is a use and a noun: "hiking boots"."""

    category: str  # as in the published files
    label: str  # the first part of the product category
    nouns: tuple[str, ...]
    uses: tuple[str, ...]
    attributes: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]  # (name, all values)


_COLOURS = ("color", ("black", "white", "red", "blue", "green", "yellow", "purple", "orange"))
_SIZES = ("size", ("small", "medium", "large", "mini", "giant", "regular"))
_PACKS = ("pack", ("single", "double", "triple", "bulk", "sample", "dozen"))

DEPARTMENTS = (
    Department(
        "fashion",
        "Clothing",
        ("boots", "sandals", "jacket", "sweater", "trousers", "gloves"),
        ("hiking", "running", "winter", "office", "travel"),
        ("waterproof", "wool", "cotton", "fleece", "machine wash", "slim fit", "lightweight", "stretch"),
        (_COLOURS, _SIZES, _PACKS),
    ),
    Department(
        "beauty",
        "Beauty",
        ("shampoo", "lotion", "serum", "cleanser", "mask", "balm"),
        ("face", "hair", "hand", "beard", "night"),
        ("vegan", "organic", "hydrating", "soothing", "cruelty free", "oil free", "long lasting", "gentle"),
        (("scent", ("lavender", "rose", "vanilla", "coconut", "mint", "lemon")), _SIZES, _PACKS),
    ),
    Department(
        "electronics",
        "Electronics",
        ("charger", "headphones", "speaker", "keyboard", "camera", "radio"),
        ("gaming", "office", "car", "desk", "travel"),
        ("wireless", "bluetooth", "noise cancelling", "fast charging", "compact", "backlit", "durable", "quiet"),
        (_COLOURS, _SIZES, _PACKS),
    ),
    Department(
        "garden",
        "Home",
        ("table", "lamp", "rug", "chair", "shelf", "curtain"),
        ("patio", "bedroom", "kitchen", "office", "nursery"),
        ("solid wood", "easy assembly", "space saving", "foldable", "washable", "modern", "rustic", "padded"),
        (_COLOURS, _SIZES, _PACKS),
    ),
    Department(
        "grocery",
        "Grocery",
        ("cookies", "tea", "granola", "crackers", "sauce", "chips"),
        ("breakfast", "party", "lunch", "camping", "holiday"),
        ("gluten free", "sugar free", "high protein", "low sodium", "keto", "kosher", "crunchy", "organic"),
        (("flavor", ("vanilla", "lemon", "chocolate", "honey", "mint", "berry")), _SIZES, _PACKS),
    ),
)

BRANDS = (
    *("Velmor", "Tanika", "Orbeo", "Quilby", "Nestra", "Brivo", "Zolane", "Mirth"),
    *("Kestro", "Fennel", "Dorvy", "Lumsa", "Pavero", "Harkin", "Yondel", "Sabra"),
)

# adjectives with which descriptions praise a product; each one more ranks it higher in a search
PRAISE = ("best", "top", "new", "super", "great", "prime")

"""The reward of a purchase. As in the original, oddities included: see `purchase_reward`.

    reward = r_type * (attributes matched + options matched + [price <= limit]) / (attributes + options + 1)

Source: WebShop, section 3 of arxiv.org/abs/2207.01206 and the behaviour of github.com/princeton-nlp/WebShop.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from tsr_lightning.worlds.webshop.colours import colour_in, colour_of
from tsr_lightning.worlds.webshop.nouns import NounTagger
from tsr_lightning.worlds.webshop.product import Goal, Product

MIN_RATIO = 85.5  # per cent from which two texts match
SAME_TITLE = 0.2  # fraction of the goal's nouns above which titles name the same type
OTHER_TITLE = 0.1  # and below which they name different types
TITLE_SCORE_WITHOUT_NOUNS = 0.2  # where the goal's title has no noun
SAME_CATEGORIES = 2  # parts of the category path that two products of a type share
SIMILAR_TYPE, OTHER_TYPE, NO_NOUN_SHARED = 0.5, 0.1, 0.0  # r_type below 1

_LATIN_1 = dict.fromkeys(range(128, 256))  # dropped before texts are compared, as by thefuzz


@dataclass(frozen=True, slots=True)
class TypeMatch:
    """The match of a product's type with a goal's."""

    r_type: float
    query_match: bool
    category_match: bool
    title_score: float  # fraction of the goal's nouns that the product's title has


@dataclass(frozen=True, slots=True)
class RewardDetail:
    """The parts of a reward, named as in the original: `r_` is the fraction matched, `w_` its weight.

    None where the goal asks for nothing.
    """

    reward: float
    r_type: float
    r_att: float | None
    w_att: float
    query_match: bool
    category_match: bool
    title_score: float
    r_option: float | None
    w_option: float | None
    r_price: bool
    w_price: float


@dataclass(frozen=True, slots=True)
class ProductMatch:
    """The match of a product with a goal before its options are chosen."""

    type: TypeMatch
    attributes: int  # matched
    price: bool  # within the limit


def purchase_reward(product: Product, goal: Goal, chosen: Sequence[str], nouns: NounTagger) -> RewardDetail:
    """The reward of buying `product` with the values `chosen` of its options.

    Oddities of the original that are kept, since published scores contain them:

    - an attribute also matches if title, features or description contain it literally;
    - a set of words matches any superset, so "xx-large" satisfies "xx-large tall", and "navy" "dark navy x";
    - of a chosen value with a colour in it, only the colour counts, while a synthetic goal's option is compared as the
      text "('color', 'dark navy')" unless its value or its name is exactly a colour; a human goal's option is treated
      like a chosen value.

    Args:
        product: bought.
        goal: asks for it.
        chosen: values of options.
        nouns: finds the nouns of a title.
    """
    match = match_product(product, goal, nouns)
    matched = len(set[int]().union(*(matched_options(goal, value) for value in chosen)))
    attributes, options = len(goal.attributes), len(goal.options)
    total = attributes + options + 1
    return RewardDetail(
        reward=total_reward(match, goal, matched),
        r_type=match.type.r_type,
        r_att=match.attributes / attributes if attributes else None,
        w_att=attributes / total,
        query_match=match.type.query_match,
        category_match=match.type.category_match,
        title_score=match.type.title_score,
        r_option=matched / options if options else None,
        w_option=options / total if options else None,
        r_price=match.price,
        w_price=1 / total,
    )


def total_reward(match: ProductMatch, goal: Goal, options: int) -> float:
    """The reward with so many of the goal's options matched."""
    matched = (match.attributes + options + match.price) / (len(goal.attributes) + len(goal.options) + 1)
    return matched * match.type.r_type


@lru_cache(maxsize=1 << 14)
def match_product(product: Product, goal: Goal, nouns: NounTagger) -> ProductMatch:
    attributes = count_matched_attributes(product, goal.attributes)
    return ProductMatch(match_type(product, goal, nouns), attributes, product.price <= goal.price_limit)


def match_type(product: Product, goal: Goal, nouns: NounTagger) -> TypeMatch:
    """Compares the queries that found both products, their categories, and the nouns of their titles."""
    query_match = product.query == goal.query
    category_match = len(_categories(product.product_category) & _categories(goal.product_category)) >= SAME_CATEGORIES
    wanted = nouns(goal.name)
    title_score = len({*nouns(product.title)} & {*wanted}) / len(wanted) if wanted else TITLE_SCORE_WITHOUT_NOUNS
    if title_score == 0:
        r_type = NO_NOUN_SHARED
    elif title_score < OTHER_TITLE:
        r_type = OTHER_TYPE
    else:
        r_type = 1.0 if query_match or category_match or title_score > SAME_TITLE else SIMILAR_TYPE
    return TypeMatch(r_type, query_match, category_match, title_score)


def count_matched_attributes(product: Product, attributes: Iterable[str]) -> int:
    """Counts the attributes that the product has, or its texts contain."""
    texts = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return sum(
        any(fuzzy_match(own, attribute) for own in product.attributes) or any(attribute in text for text in texts)
        for attribute in attributes
    )


def matched_options(goal: Goal, value: str) -> frozenset[int]:
    """Returns the indices of the goal's options that a chosen value satisfies."""
    return _matched_options(goal.options, value)


@lru_cache(maxsize=1 << 16)
def _matched_options(options: tuple[tuple[str, str], ...], value: str) -> frozenset[int]:
    chosen = colour_in(value)
    return frozenset(index for index, wanted in enumerate(_option_texts(options)) if fuzzy_match(chosen, wanted))


def fuzzy_match(one: str, other: str) -> bool:
    """True if the words of one text are those of the other, or among them, up to spelling."""
    # the original rounds, to even numbers at halves, and asks for more than 85
    return token_set_ratio(_plain(one), _plain(other), score_cutoff=MIN_RATIO) > 0


@lru_cache(maxsize=1 << 12)
def _option_texts(options: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Options of a goal as texts; only human goals have no names."""
    return tuple(colour_of(name, value) if name else colour_in(value) for name, value in options)


@lru_cache(maxsize=1 << 16)
def _plain(text: str) -> str:
    """Lower case, and blanks for all but letters and digits, as thefuzz does it."""
    return default_process(text.translate(_LATIN_1))


@lru_cache(maxsize=1 << 14)
def _categories(path: str) -> frozenset[str]:
    return frozenset(part.strip() for part in path.split("›"))

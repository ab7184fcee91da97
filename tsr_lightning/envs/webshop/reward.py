"""What a purchase is worth. As in the original, oddities included: see `judge`.

    reward = r_type * (attributes matched + options matched + [price <= limit]) / (attributes + options + 1)

Source: WebShop, section 3 of arxiv.org/abs/2207.01206 and the behaviour of github.com/princeton-nlp/WebShop.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from rapidfuzz.fuzz import token_set_ratio
from rapidfuzz.utils import default_process

from tsr_lightning.envs.webshop.colours import colour_in, colour_of
from tsr_lightning.envs.webshop.nouns import Nouns
from tsr_lightning.envs.webshop.product import Goal, Product

ALIKE = 85.5  # per cent from which two texts are the same
SAME_TITLE = 0.2  # share of the goal's nouns above which titles are of a kind
OTHER_TITLE = 0.1  # and below which they are of different kinds
UNTOLD_TITLE = 0.2  # the share where the goal's title has no noun
SAME_CATEGORIES = 2  # parts of the category path that two articles of a kind share
OTHER_KIND, HARDLY, NOT_AT_ALL = 0.5, 0.1, 0.0  # r_type where neither query nor category nor title is the goal's, ...

_LATIN_1 = dict.fromkeys(range(128, 256))  # dropped before texts are compared, as by thefuzz


@dataclass(frozen=True, slots=True)
class Kinship:
    """Whether an article is of the kind that a goal asks for."""

    r_type: float
    query_match: bool
    category_match: bool
    title_score: float  # share of the goal's nouns that the article's title has


@dataclass(frozen=True, slots=True)
class Detail:
    """The parts of a reward. `r_` is what share was matched, `w_` its weight; None where the goal asks for nothing."""

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
class Appraisal:
    """What an article is worth to a goal before its options are chosen."""

    kinship: Kinship
    attributes: int  # matched
    price: bool  # within the limit


def judge(product: Product, goal: Goal, chosen: Sequence[str], nouns: Nouns) -> Detail:
    """The reward of buying `product` with the values `chosen` of its options.

    Oddities of the original that are kept, since published scores contain them:

    - an attribute counts as had if it stands in title, features or description, as it is written;
    - a set of words is like any that holds it, so "xx-large" satisfies "xx-large tall", and "navy" "dark navy x";
    - of chosen values any colour in them is all that counts, while a synthetic goal's option is compared as the text
      "('color', 'dark navy')" unless its value, or its name, is exactly a colour; a human goal's is treated as chosen
      values are.

    Args:
        product: bought.
        goal: asks for it.
        chosen: values of options.
        nouns: finds the nouns of a title.
    """
    appraisal = appraise(product, goal, nouns)
    matched = len(set[int]().union(*(satisfied(goal, value) for value in chosen)))
    kinship, wanted, options = appraisal.kinship, len(goal.attributes), len(goal.options)
    whole = wanted + options + 1
    return Detail(
        reward=worth(appraisal, goal, matched),
        r_type=kinship.r_type,
        r_att=appraisal.attributes / wanted if wanted else None,
        w_att=wanted / whole,
        query_match=kinship.query_match,
        category_match=kinship.category_match,
        title_score=kinship.title_score,
        r_option=matched / options if options else None,
        w_option=options / whole if options else None,
        r_price=appraisal.price,
        w_price=1 / whole,
    )


def worth(appraisal: Appraisal, goal: Goal, options: int) -> float:
    """The reward with so many of the goal's options matched."""
    matched = (appraisal.attributes + options + appraisal.price) / (len(goal.attributes) + len(goal.options) + 1)
    return matched * appraisal.kinship.r_type


@lru_cache(maxsize=1 << 14)
def appraise(product: Product, goal: Goal, nouns: Nouns) -> Appraisal:
    return Appraisal(
        kinship(product, goal, nouns), attributes_matched(product, goal.attributes), product.price <= goal.price_limit
    )


def kinship(product: Product, goal: Goal, nouns: Nouns) -> Kinship:
    """How near in kind the article is: by the query that found both, by category and by the nouns of the titles."""
    query_match = product.query == goal.query
    category_match = len(_categories(product.product_category) & _categories(goal.product_category)) >= SAME_CATEGORIES
    wanted = nouns(goal.name)
    title_score = len({*nouns(product.title)} & {*wanted}) / len(wanted) if wanted else UNTOLD_TITLE
    if title_score == 0:
        r_type = NOT_AT_ALL
    elif title_score < OTHER_TITLE:
        r_type = HARDLY
    else:
        r_type = 1.0 if query_match or category_match or title_score > SAME_TITLE else OTHER_KIND
    return Kinship(r_type, query_match, category_match, title_score)


def attributes_matched(product: Product, attributes: Iterable[str]) -> int:
    """How many of the attributes the article has, or tells of."""
    told = (product.title.lower(), " ".join(product.bullets).lower(), product.description.lower())
    return sum(
        any(alike(had, attribute) for had in product.attributes) or any(attribute in text for text in told)
        for attribute in attributes
    )


def satisfied(goal: Goal, value: str) -> frozenset[int]:
    """Which of the goal's options a chosen value satisfies."""
    return _satisfied(goal.options, value)


@lru_cache(maxsize=1 << 16)
def _satisfied(options: tuple[tuple[str, str], ...], value: str) -> frozenset[int]:
    chosen = colour_in(value)
    return frozenset(index for index, wanted in enumerate(_wanted(options)) if alike(chosen, wanted))


def alike(one: str, other: str) -> bool:
    """Whether the words of one text are those of the other, or among them, up to spelling."""
    # the original rounds, to even numbers at halves, and asks for more than 85
    return token_set_ratio(_plain(one), _plain(other), score_cutoff=ALIKE) > 0


@lru_cache(maxsize=1 << 12)
def _wanted(options: tuple[tuple[str, str], ...]) -> tuple[str, ...]:
    """Options of a goal as texts; only human goals leave out the names."""
    return tuple(colour_of(name, value) if name else colour_in(value) for name, value in options)


@lru_cache(maxsize=1 << 16)
def _plain(text: str) -> str:
    """Lower case, and blanks for all but letters and digits, as thefuzz does it."""
    return default_process(text.translate(_LATIN_1))


@lru_cache(maxsize=1 << 14)
def _categories(path: str) -> frozenset[str]:
    return frozenset(part.strip() for part in path.split("›"))

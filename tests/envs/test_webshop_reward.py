"""The reward, by hand: each part, and the oddities that are the original's."""

import math
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import product as combinations
from pathlib import Path
from typing import Any

import pytest

from tests.webshop_fakes import CANDLE, GOAL, MUGS, PRODUCTS, SHIRT, product, shop_of
from tsr_lightning.envs.webshop.colours import colour_in, colour_of
from tsr_lightning.envs.webshop.nouns import TAGGERS, alphabetic, by_rule, tagger
from tsr_lightning.envs.webshop.oracle import next_action
from tsr_lightning.envs.webshop.pages import Page, act, options_of
from tsr_lightning.envs.webshop.product import Goal, Product
from tsr_lightning.envs.webshop.reward import Detail, alike, attributes_matched, judge, kinship, satisfied
from tsr_lightning.envs.webshop.score import PATIENCE, most_matched, prospect
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key


def bought(article: Product, *values: str, goal: Goal = GOAL) -> Detail:
    return judge(article, goal, values, alphabetic)


def test_all_that_is_asked_for() -> None:
    # 2 attributes + 2 options + the price, of 5
    assert bought(SHIRT, "navy", "xx-large") == Detail(
        reward=1.0,
        r_type=1.0,
        r_att=1.0,
        w_att=0.4,
        query_match=True,
        category_match=True,
        title_score=1.0,
        r_option=1.0,
        w_option=0.4,
        r_price=True,
        w_price=0.2,
    )


def test_parts_that_are_missing() -> None:
    assert bought(SHIRT).reward == 3 / 5  # no option
    assert bought(SHIRT, "white", "xx-large").reward == 4 / 5  # one of two
    assert bought(replace(SHIRT, price=30.0), "navy", "xx-large").reward == 1.0  # the limit itself is low enough
    dear = bought(replace(SHIRT, price=30.01), "navy", "xx-large")
    assert (dear.reward, dear.r_price) == (4 / 5, False)
    worn = bought(replace(SHIRT, attributes=("machine wash",)), "navy", "xx-large")
    assert (worn.reward, worn.r_att) == (4 / 5, 1 / 2)


def test_an_article_of_another_kind() -> None:
    # title "Soy Candle" shares no noun with "Men's Linen Shirt", so nothing else counts
    candle = bought(CANDLE)
    assert (candle.reward, candle.r_type, candle.title_score) == (0.0, 0.0, 0.0)
    assert (candle.query_match, candle.category_match, candle.r_price) == (False, False, True)


def test_a_goal_without_options_or_limit() -> None:
    plain = replace(GOAL, options=(), price_limit=math.inf)
    told = bought(SHIRT, "white", goal=plain)
    # 2 attributes + the price, of 3
    assert (told.reward, told.w_att, told.w_price) == (1.0, 2 / 3, 1 / 3)
    assert (told.r_option, told.w_option) == (None, None)
    nothing = bought(SHIRT, goal=replace(plain, attributes=()))
    assert (nothing.reward, nothing.r_att, nothing.w_att) == (1.0, None, 0.0)


@pytest.mark.parametrize(
    ("title", "query", "category", "r_type", "title_score"),
    [
        ("Men's Linen Shirt", "men's shirts", "Clothing › Men", 1.0, 1.0),
        ("Shirt", "mugs", "Home", 1.0, 1 / 4),  # a noun of 4 (men, s, linen, shirt) is more than 0.2
        ("Shirt and tie", "mugs", "Home", 1.0, 1 / 4),
        ("Mug", "men's shirts", "Clothing › Men", 0.0, 0.0),  # query and category do not help without a noun
    ],
)
def test_kinship(title: str, query: str, category: str, r_type: float, title_score: float) -> None:
    found = kinship(product(title=title, query=query, product_category=category), GOAL, alphabetic)
    assert (found.r_type, found.title_score) == (r_type, title_score)


def test_kinship_of_long_titles() -> None:
    def found(nouns: int, query: str) -> float:
        goal = replace(GOAL, name=" ".join(["shirt", *"bcdefghijklmnopq"][:nouns]))
        return kinship(product(title="A shirt", query=query), goal, alphabetic).r_type

    assert found(4, "mugs") == 1.0  # 1/4
    assert found(5, "mugs") == 0.5  # 1/5 is not more than 0.2
    assert found(5, GOAL.query) == 1.0
    assert found(10, "mugs") == 0.5  # 1/10 is not less than 0.1
    assert found(11, "mugs") == found(11, GOAL.query) == 0.1  # 1/11 is
    # a repeated noun counts in the goal each time, and once in what is shared: 1/6 of "shirt shirt shirt b c d"
    repeated = replace(GOAL, name="shirt shirt shirt b c d")
    assert kinship(product(title="shirt shirt"), repeated, alphabetic).title_score == 1 / 6
    # a goal without nouns: 0.2, which is neither more than 0.2 nor less than 0.1
    assert kinship(product(title="shirt"), replace(GOAL, name="20 x"), lambda _: ()).r_type == 0.5


def test_two_parts_of_the_category_make_a_kind() -> None:
    goal = replace(GOAL, name="shirt b c d e", product_category="Clothing › Men › Shirts")

    def found(path: str) -> bool:
        return kinship(product(title="shirt", product_category=path), goal, alphabetic).category_match

    assert found("Men› Clothing ")  # in any order
    assert not found("Clothing › Women")
    assert not found("Clothing › Clothing")  # each part once


def test_attributes_are_had_or_told() -> None:
    article = product(
        title="Quick Dry Towel", description="It is Soft.", bullets=("Hand", "Wash"), attributes=("easy care",)
    )

    def had(*attributes: str) -> int:
        return attributes_matched(article, attributes)

    assert had("easy care") == had("care easy") == had("easy-care") == had("easy") == 1
    assert had("quick dry") == had("soft") == had("ick dr") == 1  # in the text, as it is written
    assert had("hand wash") == 1  # features are joined by blanks
    assert had("Quick Dry") == 0  # the text is in lower case, the attribute is not
    assert had("dry quick") == 0
    assert had("easy care", "easy care", "wool") == 2


def test_alike() -> None:
    assert alike("xx-large", "xx-large tall")  # all words of one are in the other
    assert alike("XX Large", "xx-large")
    assert not alike("large", "x")
    # 12 letters, one of them other: 100 * (1 - 2 / 24) = 91.7
    assert alike("aaaaaaaaaaab", "aaaaaaaaaaac")
    # 7 letters, one of them other: 100 * (1 - 2 / 14) = 85.7, which rounds to 86
    assert alike("aaaaaab", "aaaaaac")
    # 17 letters and 6 more: 100 * (1 - 6 / 40) = 85, which is not more than 85
    assert not alike("a" * 17, "a" * 23)
    assert not alike("", "")
    assert alike("café", "caf")  # é and all of Latin-1 beyond ASCII are dropped
    assert not alike("日本", "本")


@pytest.mark.parametrize(
    ("said", "colour"),
    [
        ("navy", "navy"),
        ("dark navy x", "dark"),  # the first of the list, not of the text
        ("light blue", "blue"),
        ("stonewashed", "ash"),
        ("xx-large", "xx-large"),
        ("tan", "tan"),
        ("titanium", "tan"),
        ("Navy", "Navy"),
    ],
)
def test_colours_of_chosen_values(said: str, colour: str) -> None:
    assert colour_in(said) == colour


def test_colours_of_what_a_goal_asks_for() -> None:
    assert colour_of("color", "navy") == "navy"
    assert colour_of("color", "dark navy") == "('color', 'dark navy')"
    assert colour_of("gold", "xl") == "gold"  # the name of an option, too
    assert colour_of("white", "black") == "black"
    assert colour_of("men's", "x") == "(\"men's\", 'x')"


def test_options_that_satisfy() -> None:
    def had(name: str, wanted: str, value: str) -> bool:
        return satisfied(replace(GOAL, options=((name, wanted),)), value) == {0}

    assert had("color", "navy", "navy")
    assert had("size", "xx-large", "xx-large")
    # "size xx large" has all words of "large"; so every large does
    assert had("size", "xx-large", "large")
    assert had("size", "xx-large tall", "xx-large")
    # the chosen "dark navy" is "dark", and "color dark navy" has that word; so has "dark red"
    assert had("color", "dark navy", "dark navy")
    assert had("color", "dark navy", "dark red")
    assert not had("color", "navy", "dark navy")  # "dark" against "navy"
    # a human goal names no option: its colours are found as those of chosen values are
    assert had("", "dark navy", "dark red")
    assert had("", "sky blue", "blue")
    assert not had("", "xx-large tall", "small")


def test_one_value_may_satisfy_several_options() -> None:
    goal = replace(GOAL, options=(("", "large"), ("", "large tall")))
    assert satisfied(goal, "large") == {0, 1}
    assert bought(SHIRT, "large", goal=goal).r_option == 1.0


def test_taggers() -> None:
    assert alphabetic("Men's T-Shirt, 100% Cotton 2XL café") == ("men", "s", "t", "shirt", "cotton", "café")
    # spaCy takes adjectives with a capital for names, too
    title = "Women's Long Washable Table with a Super-Soft Cover, Large, Blue"
    assert by_rule(title) == ("women", "long", "table", "super", "soft", "cover", "blue")
    assert tagger("rule") is by_rule
    assert tagger("alphabetic") is alphabetic
    assert set(TAGGERS) == {"rule", "spacy", "auto", "alphabetic"}


def test_with_spacy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A spaCy of three lines, which says that words with a capital are names and "shirt" is a noun."""
    (tmp_path / "en_core_web_sm.py").write_text("")
    (tmp_path / "spacy.py").write_text(
        "class Token:\n"
        "    def __init__(self, text):\n"
        "        self.text = text\n"
        "        self.pos_ = 'PROPN' if text.istitle() else 'NOUN' if text == 'shirt' else 'ADJ'\n"
        "def load(name):\n"
        "    assert name == 'en_core_web_sm'\n"
        "    return lambda title: [Token(text) for text in title.split()]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("spacy", "en_core_web_sm"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    tagger.cache_clear()
    try:
        assert tagger("spacy")("Linen shirt blue") == tagger("auto")("Linen shirt blue") == ("linen", "shirt")
    finally:
        tagger.cache_clear()
        sys.modules.pop("spacy", None)


@pytest.mark.skipif(find_spec("spacy") is not None, reason="spaCy is installed")
def test_without_spacy() -> None:
    assert tagger("auto") is by_rule
    with pytest.raises(ConfigError, match=r"nouns is 'spacy': install spacy and its model en_core_web_sm, or take"):
        tagger("spacy")


# ---- what is in reach


def brute_force(article: Product, goal: Goal, chosen: dict[str, str]) -> list[int]:
    """The most options matched by clicks, by trying every way to choose."""
    names = sorted(name for name, _ in article.options)
    offered = {name: [value for value, owner in options_of(article).items() if owner == name] for name in names}
    found: dict[int, int] = {}
    for choice in combinations(*[[None, *offered[name]] for name in names]):
        then = {**chosen, **{name: value for name, value in zip(names, choice, strict=True) if value is not None}}
        clicks = sum(value is not None for value in choice)
        matched = len(set[int]().union(*(satisfied(goal, value) for value in then.values())))
        found[clicks] = max(found.get(clicks, 0), matched)
    return [max(found[less] for less in range(clicks + 1)) for clicks in range(max(found) + 1)]


def test_most_matched_against_every_choice() -> None:
    values = ["navy", "large", "xx-large", "red", "large tall", "dark red", "one", "tall"]
    for seed in range(150):
        key = Key(seed)

        def some(index: int, count: int, key: Key = key) -> tuple[str, ...]:
            return tuple(dict.fromkeys(values[key.bits(10 * index + place) % len(values)] for place in range(count)))

        article = replace(SHIRT, options=(("color", some(0, 3)), ("size", some(1, 3)), ("style", some(2, 2))))
        goal = replace(GOAL, options=(("color", some(3, 1)[0]), ("size", some(4, 1)[0]), ("", some(5, 1)[0])))
        owners = options_of(article)
        chosen = {owners[value]: value for value in list(owners)[: key.bits(99) % 3]}
        ours = list(most_matched(article, goal, tuple(chosen.values())))
        theirs = brute_force(article, goal, chosen)
        assert ours == theirs[: len(ours)]
        assert set(theirs[len(ours) :]) <= {ours[-1]}


def worth_of(page: Page, turns: int = 9, **settings: Any) -> float:
    return prospect(shop_of(*PRODUCTS), page, settings.get("goal", GOAL), alphabetic, turns)


def test_prospects_by_hand() -> None:
    shop = shop_of(*PRODUCTS)
    results = act(shop, Page(), "search[shirt]")
    assert results is not None
    item = act(shop, results, "click[b0shirt001]")
    assert item is not None
    half = item._replace(options=(("color", "navy"),))
    full = item._replace(options=(("color", "navy"), ("size", "xx-large")))
    assert worth_of(Page()) == 0.0  # nothing in sight
    assert worth_of(results) == PATIENCE**4  # open, two options, buy
    assert worth_of(item) == PATIENCE**3
    assert worth_of(half) == PATIENCE**2
    assert worth_of(full) == PATIENCE
    assert worth_of(full._replace(kind="item_sub_page", sub="Features")) == PATIENCE**2
    assert worth_of(item._replace(options=(("color", "white"), ("size", "xx-large")))) == PATIENCE**2
    # with two turns left one option can still be chosen, with one none, with none nothing can be bought
    assert [worth_of(item, turns) for turns in (2, 1, 0)] == pytest.approx([0.8 * PATIENCE**2, 0.6 * PATIENCE, 0.0])
    # of the mugs on the first page none is of the kind; a search that finds nothing is worth nothing
    mugs = act(shop, Page(), "search[mug]")
    nothing = act(shop, Page(), "search[nothing]")
    assert mugs is not None
    assert nothing is not None
    assert worth_of(mugs) == worth_of(nothing) == 0.0
    # to who wants a big one for at most 4 dollars a mug has the attribute and no more, of 3: open, buy
    cheap = Goal(MUGS[0].asin, "a mug", "mugs", "Mug", "Home › Mugs", ("dishwasher safe",), (), 4.0)
    assert worth_of(mugs, goal=replace(cheap, options=(("", "big"),))) == pytest.approx(1 / 3 * PATIENCE**2)


def test_prospects_rise_along_the_best_way() -> None:
    shop = shop_of(*PRODUCTS)
    page, seen = Page(), [0.0]
    for turns in range(8, 0, -1):
        there = act(shop, page, next_action(shop, GOAL, page, alphabetic, turns + 1))
        assert there is not None
        page = there
        if page.kind == "done":
            break
        seen.append(worth_of(page, turns))
    assert page.kind == "done"
    assert seen == sorted(set(seen))
    assert len(seen) == 5

"""Reward and score by hand: each part, and the original's oddities."""

import math
import sys
from dataclasses import replace
from importlib.util import find_spec
from itertools import product as combinations
from pathlib import Path
from typing import Any

import pytest

from tests.webshop_fakes import CANDLE, GOAL, MUGS, PRODUCTS, SHIRT, product, shop_of
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.colours import colour_in, colour_of
from tsr_lightning.worlds.webshop.nouns import TAGGERS, alphabetic, by_rule, tagger
from tsr_lightning.worlds.webshop.oracle import next_action
from tsr_lightning.worlds.webshop.pages import Page, act, option_by_value
from tsr_lightning.worlds.webshop.product import Goal, Product
from tsr_lightning.worlds.webshop.reward import (
    RewardDetail,
    count_matched_attributes,
    fuzzy_match,
    match_type,
    matched_options,
    purchase_reward,
)
from tsr_lightning.worlds.webshop.score import CLICK_DISCOUNT, most_matched_options, page_score


def bought(item: Product, *values: str, goal: Goal = GOAL) -> RewardDetail:
    return purchase_reward(item, goal, values, alphabetic)


def test_a_purchase_that_matches_everything() -> None:
    # 2 attributes + 2 options + the price, of 5
    assert bought(SHIRT, "navy", "xx-large") == RewardDetail(
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


def test_each_missing_part_costs_its_weight() -> None:
    assert bought(SHIRT).reward == 3 / 5  # no option
    assert bought(SHIRT, "white", "xx-large").reward == 4 / 5  # one of two
    assert bought(replace(SHIRT, price=30.0), "navy", "xx-large").reward == 1.0  # the limit itself is low enough
    dear = bought(replace(SHIRT, price=30.01), "navy", "xx-large")
    assert (dear.reward, dear.r_price) == (4 / 5, False)
    other = bought(replace(SHIRT, attributes=("machine wash",)), "navy", "xx-large")
    assert (other.reward, other.r_att) == (4 / 5, 1 / 2)


def test_a_product_of_another_type_earns_nothing() -> None:
    # title "Soy Candle" shares no noun with "Men's Linen Shirt", so nothing else counts
    candle = bought(CANDLE)
    assert (candle.reward, candle.r_type, candle.title_score) == (0.0, 0.0, 0.0)
    assert (candle.query_match, candle.category_match, candle.r_price) == (False, False, True)


def test_a_goal_without_options_or_limit() -> None:
    plain = replace(GOAL, options=(), price_limit=math.inf)
    detail = bought(SHIRT, "white", goal=plain)
    # 2 attributes + the price, of 3
    assert (detail.reward, detail.w_att, detail.w_price) == (1.0, 2 / 3, 1 / 3)
    assert (detail.r_option, detail.w_option) == (None, None)
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
def test_type_match(title: str, query: str, category: str, r_type: float, title_score: float) -> None:
    found = match_type(product(title=title, query=query, product_category=category), GOAL, alphabetic)
    assert (found.r_type, found.title_score) == (r_type, title_score)


def test_type_match_of_long_titles() -> None:
    def found(nouns: int, query: str) -> float:
        goal = replace(GOAL, name=" ".join(["shirt", *"bcdefghijklmnopq"][:nouns]))
        return match_type(product(title="A shirt", query=query), goal, alphabetic).r_type

    assert found(4, "mugs") == 1.0  # 1/4
    assert found(5, "mugs") == 0.5  # 1/5 is not more than 0.2
    assert found(5, GOAL.query) == 1.0
    assert found(10, "mugs") == 0.5  # 1/10 is not less than 0.1
    assert found(11, "mugs") == found(11, GOAL.query) == 0.1  # 1/11 is
    # a repeated noun counts in the goal each time, and once in what is shared: 1/6 of "shirt shirt shirt b c d"
    repeated = replace(GOAL, name="shirt shirt shirt b c d")
    assert match_type(product(title="shirt shirt"), repeated, alphabetic).title_score == 1 / 6
    # a goal without nouns: 0.2, which is neither more than 0.2 nor less than 0.1
    assert match_type(product(title="shirt"), replace(GOAL, name="20 x"), lambda _: ()).r_type == 0.5


def test_two_shared_parts_of_the_category_path_match() -> None:
    goal = replace(GOAL, name="shirt b c d e", product_category="Clothing › Men › Shirts")

    def found(path: str) -> bool:
        return match_type(product(title="shirt", product_category=path), goal, alphabetic).category_match

    assert found("Men› Clothing ")  # in any order
    assert not found("Clothing › Women")
    assert not found("Clothing › Clothing")  # each part once


def test_attributes_match_by_name_or_in_the_texts() -> None:
    item = product(
        title="Quick Dry Towel", description="It is Soft.", bullets=("Hand", "Wash"), attributes=("easy care",)
    )

    def count(*attributes: str) -> int:
        return count_matched_attributes(item, attributes)

    assert count("easy care") == count("care easy") == count("easy-care") == count("easy") == 1
    assert count("quick dry") == count("soft") == count("ick dr") == 1  # in the text, as it is written
    assert count("hand wash") == 1  # features are joined by blanks
    assert count("Quick Dry") == 0  # the text is in lower case, the attribute is not
    assert count("dry quick") == 0
    assert count("easy care", "easy care", "wool") == 2


def test_fuzzy_match() -> None:
    assert fuzzy_match("xx-large", "xx-large tall")  # all words of one are in the other
    assert fuzzy_match("XX Large", "xx-large")
    assert not fuzzy_match("large", "x")
    # 12 letters, one of them other: 100 * (1 - 2 / 24) = 91.7
    assert fuzzy_match("aaaaaaaaaaab", "aaaaaaaaaaac")
    # 7 letters, one of them other: 100 * (1 - 2 / 14) = 85.7, which rounds to 86
    assert fuzzy_match("aaaaaab", "aaaaaac")
    # 17 letters and 6 more: 100 * (1 - 6 / 40) = 85, which is not more than 85
    assert not fuzzy_match("a" * 17, "a" * 23)
    assert not fuzzy_match("", "")
    assert fuzzy_match("café", "caf")  # é and all of Latin-1 beyond ASCII are dropped
    assert not fuzzy_match("日本", "本")


@pytest.mark.parametrize(
    ("text", "colour"),
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
def test_colours_of_chosen_values(text: str, colour: str) -> None:
    assert colour_in(text) == colour


def test_colours_of_a_goals_options() -> None:
    assert colour_of("color", "navy") == "navy"
    assert colour_of("color", "dark navy") == "('color', 'dark navy')"
    assert colour_of("gold", "xl") == "gold"  # the name of an option, too
    assert colour_of("white", "black") == "black"
    assert colour_of("men's", "x") == "(\"men's\", 'x')"


def test_which_values_match_an_option() -> None:
    def matches(name: str, wanted: str, value: str) -> bool:
        return matched_options(replace(GOAL, options=((name, wanted),)), value) == {0}

    assert matches("color", "navy", "navy")
    assert matches("size", "xx-large", "xx-large")
    # "size xx large" has all words of "large"; so every large does
    assert matches("size", "xx-large", "large")
    assert matches("size", "xx-large tall", "xx-large")
    # the chosen "dark navy" is "dark", and "color dark navy" has that word; so has "dark red"
    assert matches("color", "dark navy", "dark navy")
    assert matches("color", "dark navy", "dark red")
    assert not matches("color", "navy", "dark navy")  # "dark" against "navy"
    # a human goal names no option: its colours are found like those of chosen values
    assert matches("", "dark navy", "dark red")
    assert matches("", "sky blue", "blue")
    assert not matches("", "xx-large tall", "small")


def test_one_value_may_match_several_options() -> None:
    goal = replace(GOAL, options=(("", "large"), ("", "large tall")))
    assert matched_options(goal, "large") == {0, 1}
    assert bought(SHIRT, "large", goal=goal).r_option == 1.0


def test_the_taggers_that_need_no_spacy() -> None:
    assert alphabetic("Men's T-Shirt, 100% Cotton 2XL café") == ("men", "s", "t", "shirt", "cotton", "café")
    # spaCy tags capitalised adjectives as names, too
    title = "Women's Long Washable Table with a Super-Soft Cover, Large, Blue"
    assert by_rule(title) == ("women", "long", "table", "super", "soft", "cover", "blue")
    assert tagger("rule") is by_rule
    assert tagger("alphabetic") is alphabetic
    assert set(TAGGERS) == {"rule", "spacy", "auto", "alphabetic"}


def test_spacy_is_used_where_it_is_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a fake spaCy that tags capitalised words as names and "shirt" as a noun."""
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
def test_spacy_is_refused_and_auto_falls_back_without_it() -> None:
    assert tagger("auto") is by_rule
    with pytest.raises(ConfigError, match=r"WebShopEnv\.nouns is 'spacy': install spacy and its model en_core_web_sm"):
        tagger("spacy")


# ---- score


def brute_force(item: Product, goal: Goal, chosen: dict[str, str]) -> list[int]:
    """The most options matched with 0, 1, ... clicks, by trying every choice."""
    names = sorted(name for name, _ in item.options)
    offered = {name: [value for value, owner in option_by_value(item).items() if owner == name] for name in names}
    found: dict[int, int] = {}
    for choice in combinations(*[[None, *offered[name]] for name in names]):
        then = {**chosen, **{name: value for name, value in zip(names, choice, strict=True) if value is not None}}
        clicks = sum(value is not None for value in choice)
        matched = len(set[int]().union(*(matched_options(goal, value) for value in then.values())))
        found[clicks] = max(found.get(clicks, 0), matched)
    return [max(found[less] for less in range(clicks + 1)) for clicks in range(max(found) + 1)]


def test_most_matched_options_equals_brute_force() -> None:
    values = ["navy", "large", "xx-large", "red", "large tall", "dark red", "one", "tall"]
    for seed in range(150):
        key = Key(seed)

        def some(index: int, count: int, key: Key = key) -> tuple[str, ...]:
            return tuple(dict.fromkeys(values[key.bits(10 * index + place) % len(values)] for place in range(count)))

        item = replace(SHIRT, options=(("color", some(0, 3)), ("size", some(1, 3)), ("style", some(2, 2))))
        goal = replace(GOAL, options=(("color", some(3, 1)[0]), ("size", some(4, 1)[0]), ("", some(5, 1)[0])))
        owners = option_by_value(item)
        chosen = {owners[value]: value for value in list(owners)[: key.bits(99) % 3]}
        ours = list(most_matched_options(item, goal, tuple(chosen.values())))
        theirs = brute_force(item, goal, chosen)
        assert ours == theirs[: len(ours)]
        assert set(theirs[len(ours) :]) <= {ours[-1]}


def score_of(page: Page, turns: int = 9, **settings: Any) -> float:
    return page_score(shop_of(*PRODUCTS), page, settings.get("goal", GOAL), alphabetic, turns)


def test_scores_by_hand() -> None:
    shop = shop_of(*PRODUCTS)
    results = act(shop, Page(), "search[shirt]")
    assert results is not None
    item = act(shop, results, "click[b0shirt001]")
    assert item is not None
    half = item._replace(options=(("color", "navy"),))
    full = item._replace(options=(("color", "navy"), ("size", "xx-large")))
    assert score_of(Page()) == 0.0  # nothing in sight
    assert score_of(results) == CLICK_DISCOUNT**4  # open, two options, buy
    assert score_of(item) == CLICK_DISCOUNT**3
    assert score_of(half) == CLICK_DISCOUNT**2
    assert score_of(full) == CLICK_DISCOUNT
    assert score_of(full._replace(kind="item_sub_page", sub="Features")) == CLICK_DISCOUNT**2
    assert score_of(item._replace(options=(("color", "white"), ("size", "xx-large")))) == CLICK_DISCOUNT**2
    # with two turns left one option can still be chosen, with one none, with none nothing can be bought
    assert [score_of(item, turns) for turns in (2, 1, 0)] == pytest.approx(
        [0.8 * CLICK_DISCOUNT**2, 0.6 * CLICK_DISCOUNT, 0.0]
    )
    # no mug on the first page is of the goal's type; a search without results scores nothing
    mugs = act(shop, Page(), "search[mug]")
    nothing = act(shop, Page(), "search[nothing]")
    assert mugs is not None
    assert nothing is not None
    assert score_of(mugs) == score_of(nothing) == 0.0
    # for a goal of a big mug below 4 dollars, a mug matches the attribute alone, of 3 parts: open, buy
    cheap = Goal(MUGS[0].asin, "a mug", "mugs", "Mug", "Home › Mugs", ("dishwasher safe",), (), 4.0)
    assert score_of(mugs, goal=replace(cheap, options=(("", "big"),))) == pytest.approx(1 / 3 * CLICK_DISCOUNT**2)


def test_scores_rise_along_the_best_path() -> None:
    shop = shop_of(*PRODUCTS)
    page, scores = Page(), [0.0]
    for turns in range(8, 0, -1):
        result = act(shop, page, next_action(shop, GOAL, page, alphabetic, turns + 1))
        assert result is not None
        page = result
        if page.kind == "done":
            break
        scores.append(score_of(page, turns))
    assert page.kind == "done"
    assert scores == sorted(set(scores))
    assert len(scores) == 5

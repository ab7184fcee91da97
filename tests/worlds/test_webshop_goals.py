"""Goals: the original's texts, order and weights; price limits equal in every process; splits."""

import gzip
import json
import math
import pickle
import random
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from commands import python_output
from hypothesis import given
from hypothesis import strategies as st

from tests.webshop_fakes import product_by_asin
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.goals import (
    GoalOrder,
    Goals,
    GoalSource,
    Split,
    goals_of,
    limit_text,
    price_limit,
    split_indices,
    with_limit,
)
from tsr_lightning.worlds.webshop.product import GoalTemplate, Product
from tsr_lightning.worlds.webshop.reading import read_catalogue


def product(asin: str, *options: tuple[str, tuple[str, ...]], price: float = 12.0) -> Product:
    return Product(asin, f"The {asin}", "", (), "fashion", "shirts", "A › B", (), options, (price,), price)


SHIRT = product("B1", ("size", ("s", "m")), ("color", ("red", "blue", "tan")))  # six combinations
CUP = product("B2")
BARE = product("B3", ("size", ()))  # an option without values, as the published files have it: no combination
DEAR = product("B4", price=985.0)
TEMPLATES = (
    GoalTemplate(0, "Find me soft shirts", ("soft", "warm")),
    GoalTemplate(2, "Find me nothing", ("soft",)),
    GoalTemplate(1, "Find me a warm cup", ("warm",)),
    GoalTemplate(3, "Find me gold", ("gold",)),
)
HUMAN = (GoalTemplate(0, "i want a shirt...", ("soft",), ("red", "s")), GoalTemplate(0, "A cup.", ("warm",), (), 1))
CATALOGUE = Catalogue((SHIRT, CUP, BARE, DEAR), TEMPLATES, HUMAN)


def unshuffled(goals: Goals) -> list[str]:
    """Instructions without their limits, in the order before the shuffle."""
    texts = [goal.instruction.removesuffix(limit_text(goal.price_limit)) for goal in goals]
    numbers = list(range(len(texts)))
    random.Random(233).shuffle(numbers)  # the original shuffles its list of goals with this seed
    return [texts[numbers.index(number)] for number in range(len(texts))]


def test_every_combination_of_options_makes_a_goal_in_the_originals_order() -> None:
    goals = Goals(CATALOGUE)
    assert unshuffled(goals) == [
        "Find me soft shirts with color: red, and size: s",
        "Find me soft shirts with color: red, and size: m",
        "Find me soft shirts with color: blue, and size: s",
        "Find me soft shirts with color: blue, and size: m",
        "Find me soft shirts with color: tan, and size: s",
        "Find me soft shirts with color: tan, and size: m",
        "Find me a warm cup",
        "Find me gold",
    ]
    shirt = next(goal for goal in goals if "blue, and size: m" in goal.instruction)
    assert shirt.options == (("color", "blue"), ("size", "m"))
    assert (shirt.asin, shirt.name, shirt.query, shirt.product_category) == ("B1", "The B1", "shirts", "A › B")
    assert shirt.attributes == ("soft", "warm")
    # 6 goals of the shirt name soft, none of the bare one; 6 + 1 name warm
    assert shirt.weight == (1 / 6 + 1 / 7) / 2
    assert next(goal for goal in goals if goal.asin == "B2").weight == 1 / 7


def test_human_goals_have_nameless_options_and_no_final_full_stops() -> None:
    goals = Goals(CATALOGUE, GoalSource.HUMAN)
    assert sorted(unshuffled(goals)) == ["A cup", "i want a shirt"]
    shirt = next(goal for goal in goals if "shirt" in goal.instruction)
    assert shirt.options == (("", "red"), ("", "s"))
    assert shirt.weight == 1
    assert len({goals[0].price_limit, goals[1].price_limit} - {30.0, 40.0, 50.0}) == 0


def test_synthetic_goals_of_a_product_share_a_limit_and_prices_near_1000_have_none() -> None:
    goals = Goals(CATALOGUE)
    limits = {goal.price_limit for goal in goals if goal.asin == "B1"}
    assert len(limits) == 1
    assert limits < {30.0, 40.0, 50.0}  # the next tens above 12 are 20, 30, 40, 50; the larger of two of them
    text = f", and price lower than {limits.pop():.2f} dollars"
    assert all(goal.instruction.endswith(text) for goal in goals if goal.asin == "B1")
    dear = next(goal for goal in goals if goal.asin == "B4")
    assert dear.price_limit == math.inf
    assert dear.instruction == "Find me gold"


@given(st.floats(0, 1200), st.integers(0, 2**64 - 1))
def test_the_limit_is_one_of_the_three_tens_after_the_next(price: float, key: int) -> None:
    limit = price_limit(price, Key(key))
    above = [ten for ten in range(10, 1000, 10) if ten > price]
    if len(above) < 2:
        assert limit == math.inf
    else:
        assert limit in above[1:4]


def test_the_limit_is_the_larger_of_two_draws() -> None:
    counts = Counter(price_limit(12.0, Key(0).fold_in(number)) for number in range(6000))
    # of the six pairs of 20, 30, 40, 50 three have 50 as the larger, two 40, one 30; six standard deviations are 232
    assert {limit: round(count / 1000) for limit, count in counts.items()} == {50.0: 3, 40.0: 2, 30.0: 1}


def test_limits_are_the_same_in_every_process(tmp_path: Path) -> None:
    file = tmp_path / "catalogue.pkl"
    file.write_bytes(pickle.dumps(CATALOGUE))
    script = (
        "import pickle, sys; from pathlib import Path\n"
        "from tsr_lightning.worlds.webshop.goals import Goals, GoalSource\n"
        "catalogue = pickle.loads(Path(sys.argv[1]).read_bytes())\n"
        "print([goal.price_limit for source in GoalSource for goal in Goals(catalogue, source)])"
    )
    here = str([goal.price_limit for source in GoalSource for goal in Goals(CATALOGUE, source)])
    for salt in ("1", "2"):
        assert python_output(script, file, hash_seed=salt).strip() == here


@given(st.sampled_from([30.0, 40.0, math.inf]), st.sampled_from([50.0, 1010.0, math.inf]))
def test_with_limit_changes_the_instruction_too(first: float, second: float) -> None:
    goal = with_limit(Goals(CATALOGUE)[0], first)
    other = with_limit(goal, second)
    assert other.price_limit == second
    assert with_limit(other, first) == goal
    assert ("price lower than" in other.instruction) == (second < math.inf)


def test_goals_equal_those_of_the_recorded_episodes(shared_data: Path) -> None:
    folder = shared_data / "webshop"
    names = ("items_shuffle_1000.json.gz", "items_ins_v2_1000.json.gz")
    catalogue, _ = read_catalogue(*(folder / name for name in names))
    goals = goals_of(catalogue, GoalSource.SYNTHETIC)
    assert goals_of(catalogue, GoalSource.SYNTHETIC) is goals
    assert len(goals) == 6910
    with gzip.open(folder / "episodes.jsonl.gz", "rt", encoding="utf-8") as lines:
        episodes = [json.loads(line) for line in lines]
    assert len(episodes) == 120
    for episode in episodes:
        recorded = episode["goal"]
        goal = goals[episode["goal_index"]]
        prices = product_by_asin(catalogue, goal.asin).prices
        if len(prices) == 1:  # the record's limit is drawn anew, but from the same three
            above = [ten for ten in range(10, 1000, 10) if ten > prices[0]]
            assert recorded["price_upper"] in above[1:4] or len(above) < 2
            assert goal.price_limit in above[1:4] or len(above) < 2
        goal = with_limit(goal, recorded["price_upper"] if recorded["price_upper"] < 1000 else math.inf)
        assert goal.instruction == recorded["instruction_text"]
        assert (goal.asin, goal.query, goal.name) == (recorded["asin"], recorded["query"], recorded["name"])
        assert goal.product_category == recorded["product_category"]
        assert list(goal.attributes) == recorded["attributes"]
        assert dict(goal.options) == recorded["goal_options"]
        assert goal.weight == pytest.approx(recorded["weight"], rel=1e-14)  # Python 3.12 rounds less in sum()


# Splits


def test_the_original_tests_on_the_first_goals_and_trains_on_the_last() -> None:
    assert split_indices(6910, Split.TEST, GoalOrder.ORIGINAL) == range(500)
    assert split_indices(6910, Split.VALIDATION, GoalOrder.ORIGINAL) == range(500, 1500)
    assert split_indices(6910, Split.TRAIN, GoalOrder.ORIGINAL) == range(1500, 6910)
    assert split_indices(6910, Split.ALL, GoalOrder.ORIGINAL) == range(6910)
    assert split_indices(700, Split.VALIDATION, GoalOrder.ORIGINAL) == range(500, 700)


@given(st.integers(1501, 3000), st.integers(0, 10**9))
def test_seeds_name_the_goals_that_ragen_plays(count: int, seed: int) -> None:
    # RAGEN, ragen/env/webshop/env.py: the seed modulo the split's size, then one permutation
    permutation = list(range(count))
    random.Random(42).shuffle(permutation)
    for split, theirs in (
        (Split.TEST, seed % 500),
        (Split.VALIDATION, seed % 1000 + 500),
        (Split.TRAIN, seed % (count - 1500) + 1500),
    ):
        ours = split_indices(count, split, GoalOrder.RAGEN)
        assert ours[seed % len(ours)] == permutation[theirs]


@pytest.mark.parametrize("order", GoalOrder)
@pytest.mark.parametrize("count", [1, 500, 501, 1500, 1501, 4000])
def test_splits_are_a_partition(order: GoalOrder, count: int) -> None:
    begun = [split for split, start in ((Split.TEST, 0), (Split.VALIDATION, 500), (Split.TRAIN, 1500)) if start < count]
    splits = [list(split_indices(count, split, order)) for split in begun]
    assert sorted(chain.from_iterable(splits)) == list(range(count)) == sorted(split_indices(count, Split.ALL, order))


@pytest.mark.parametrize("order", GoalOrder)
def test_an_empty_split_is_refused(order: GoalOrder) -> None:
    with pytest.raises(ConfigError, match=r"WebShopEnv\.split is 'train': it begins at goal 1500 of 13; take 'all'"):
        split_indices(13, Split.TRAIN, order)


# Bad input


def test_a_catalogue_without_goals_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"1 products has no synthetic goals: give items_ins_v2\*\.json of the same"):
        Goals(Catalogue([CUP]))
    with pytest.raises(ConfigError, match=r"1 products has no human goals: give items_human_ins\.json, and products"):
        Goals(Catalogue([CUP]), GoalSource.HUMAN)
    with pytest.raises(ConfigError, match="no synthetic goals"):
        Goals(Catalogue([BARE], [GoalTemplate(0, "Find me", ("soft",))]))


def test_too_many_combinations_are_refused() -> None:
    many = product("B9", *((f"option {number}", tuple(map(str, range(10)))) for number in range(9)))
    with pytest.raises(ConfigError, match="makes 1000000000 goals, more than 100000000: read fewer products"):
        Goals(Catalogue([many], [GoalTemplate(0, "Find me", ("soft",))]))


def test_goals_are_a_sequence() -> None:
    goals = Goals(CATALOGUE)
    assert list(goals) == [goals[number] for number in range(8)] == goals[:]
    assert goals[-1] == goals[7]
    with pytest.raises(IndexError):
        goals[8]

"""Made shops: the same everywhere, of words that the reward tells apart, and right goals that only care can reach."""

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import astuple
from functools import lru_cache
from itertools import combinations, permutations
from itertools import product as every
from pathlib import Path

import pytest

from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.webshop.colours import colour_in
from tsr_lightning.envs.webshop.generated_shops import Mall
from tsr_lightning.envs.webshop.goals import Asked, Goals
from tsr_lightning.envs.webshop.lexicon import BRANDS, DEPARTMENTS, PRAISE, Department
from tsr_lightning.envs.webshop.nouns import TAGGERS, Nouns, tagger
from tsr_lightning.envs.webshop.product import Goal, Product
from tsr_lightning.envs.webshop.product_generator import Difficulty, stocked
from tsr_lightning.envs.webshop.publishing import ATTRIBUTES, HUMAN, PRODUCTS, publish
from tsr_lightning.envs.webshop.reading import read_catalogue
from tsr_lightning.envs.webshop.reward import alike, attributes_matched, judge, satisfied
from tsr_lightning.envs.webshop.search import search_over
from tsr_lightning.envs.webshop.shop import Shop, listing
from tsr_lightning.envs.webshop.tasks import Customer, ManyShops
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.training.instances import HeldOut, Instances

ROOT = Path(__file__).resolve().parents[2]
NOUNS = tagger("rule")
TURNS = 9
INSTANCES = 200

DIFFICULTIES = [
    Difficulty(),
    Difficulty(products=36, look_alikes=12),
    Difficulty(attributes=1, options=1),
    Difficulty(products=60, look_alikes=30, attributes=3, options=3, option_values=2),
    Difficulty(products=48, options=0),
    Difficulty(price_step=2),
]

PRINT_INSTANCES = """
from tsr_lightning.envs.webshop.generated_shops import Mall
mall = Mall()
for seed in range(12):
    shop, goal = mall.instance(seed)
    print(shop, goal, mall.goal(shop, goal), mall.catalogue(shop).products)
"""

PINNED = "Find me washable, rustic patio chair with color: purple, and size: large, and price lower than 50.00 dollars"


@lru_cache(maxsize=1000)
def customer(seed: int, difficulty: Difficulty) -> Customer:
    market = ManyShops(Mall((difficulty,)), search_over, False)
    return market.customer(*market.numbers(seed))


@pytest.fixture(scope="module")
def customers() -> list[Customer]:
    return [customer(seed, Difficulty()) for seed in range(INSTANCES)]


# -- words ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("department", DEPARTMENTS, ids=lambda department: department.category)
def test_the_reward_tells_the_words_of_a_department_apart(department: Department) -> None:
    for one, other in permutations(department.attributes, 2):
        assert not alike(one, other)
        assert one not in other
    kinds = [f"{use} {noun}" for use in department.uses for noun in department.nouns]
    named = (
        *kinds,
        *BRANDS,
        *PRAISE,
        "Sold by",
        "Made by",
        "The",
        *(v for _, values in department.options for v in values),
    )
    for attribute in department.attributes:
        assert not any(attribute in said.lower() for said in named)
    offered = [(name, value) for name, values in department.options for value in values]
    for wanted in offered:
        goal = Goal("", "", "", "", "", (), (wanted,), 0.0)
        assert [option for option in offered if satisfied(goal, option[1])] == [wanted]
    for _, value in offered:
        assert colour_in(value) == value


def test_the_vocabulary_is_small() -> None:
    """Every word, with and without a blank before it, fits into the tokenizer of an embedded policy: 640 entries, of
    which 256 are the bytes."""
    words = {*BRANDS, *PRAISE}
    for department in DEPARTMENTS:
        words |= {*department.nouns, *department.uses, *" ".join(department.attributes).split()}
        words |= {word for name, values in department.options for word in (name, *values)}
    assert 130 < len(words) < 170


# -- shops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("difficulty", DIFFICULTIES, ids=str)
def test_shops_are_as_asked(difficulty: Difficulty) -> None:
    for seed in range(4):
        products = stocked(Key(seed), difficulty).catalogue.products
        assert len(products) == difficulty.products
        assert len({item.asin for item in products}) == difficulty.products
        kinds = Counter(item.query for item in products)
        assert len(kinds) == difficulty.kinds
        assert max(kinds.values()) == difficulty.look_alikes
        for item in products:
            assert len(item.attributes) == difficulty.attributes
            assert [len(values) for _, values in item.options] == [difficulty.option_values] * difficulty.options
            assert all(len(set(values)) == len(values) for _, values in item.options)
            assert item.title == " ".join([item.title.split()[0], *item.attributes, item.query])
            assert item.prices == (item.price,)
            assert item.price % difficulty.price_step > 0


def test_products_left_over_are_a_kind_of_fewer() -> None:
    products = stocked(Key(1), Difficulty(products=40, look_alikes=24)).catalogue.products
    assert sorted(Counter(item.query for item in products).values()) == [16, 24]


def test_the_reward_sees_the_attributes_that_a_product_has_and_no_others(customers: list[Customer]) -> None:
    known = {department.category: department.attributes for department in DEPARTMENTS}
    for shop, _ in customers[:12]:
        for item in shop.catalogue.products:
            seen = [attribute for attribute in known[item.category] if attributes_matched(item, [attribute])]
            assert sorted(seen) == sorted(item.attributes)


def test_shops_share_no_product(customers: list[Customer]) -> None:
    """So that what is held out by its initial state is held out with all its products."""
    sold = Counter(
        astuple(item)[1:]  # all but the asin, whose few names mean something within a shop alone
        for shop, _ in customers
        for item in shop.catalogue.products
    )
    assert len(sold) == INSTANCES * 120


def test_what_is_held_out_is_held_out_with_its_products() -> None:
    env = make_env("tsr/WebShop-v0")
    instances = Instances(env, Key(1), HeldOut(instances=24))

    def sold(seeds: Iterable[int]) -> set[tuple[object, ...]]:
        mall = Mall()
        return {astuple(item)[1:] for seed in seeds for item in mall.catalogue(mall.instance(seed)[0]).products}

    held, trained = sold(instances.held_out), sold(instances.training(0, 48).seeds)
    assert (len(held), len(trained)) == (24 * 120, 48 * 120)
    assert not held & trained


def test_instances_vary(customers: list[Customer]) -> None:
    goals = [goal for _, goal in customers]
    assert len({goal.instruction for goal in goals}) == INSTANCES
    assert len({goal.query for goal in goals}) > 90  # of 150 kinds; 200 draws meet 110 of them on average
    assert len({goal.attributes for goal in goals}) > 120
    assert {option for goal in goals for option in goal.options} == {
        (name, value) for department in DEPARTMENTS for name, values in department.options[:2] for value in values
    }
    assert {goal.price_limit for goal in goals} >= {20.0, 30.0, 40.0, 50.0, 60.0, 70.0}
    lengths = Counter(len(item.title.split()) for shop, _ in customers[:20] for item in shop.catalogue.products)
    assert set(lengths) <= {5, 6, 7}  # brand, two attributes of a word or two, use and noun
    assert max(lengths.values()) < 0.6 * sum(lengths.values())


def test_one_shop_can_have_hundreds_of_goals() -> None:
    mall = Mall((Difficulty(products=960),), shops=1)
    numbers = list(mall.goals(0))
    assert len(numbers) > 300
    assert len({mall.goal(0, number).instruction for number in numbers}) == len(numbers)
    chosen = [mall.instance(seed) for seed in range(40)]
    assert {shop for shop, _ in chosen} == {0}
    assert {number for _, number in chosen} <= set(numbers)
    assert len(set(chosen)) > 30


def test_shops_are_shared_by_the_seed_modulo_their_number() -> None:
    mall = Mall((Difficulty(products=24),), shops=3)
    assert [mall.instance(seed)[0] for seed in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert mall.catalogue(1) is mall.catalogue(1)


def test_shops_of_several_difficulties() -> None:
    easy, hard = Difficulty(products=24, attributes=1, options=0), Difficulty(products=48)
    mall, only = Mall((easy, hard)), {len(Mall((one,)).catalogue(0)): Mall((one,)) for one in (easy, hard)}
    sizes = [len(mall.catalogue(shop)) for shop in range(60)]
    assert 20 < sizes.count(24) < 40
    assert set(sizes) == {24, 48}
    for shop, size in enumerate(sizes):  # each as if its difficulty were the only one
        assert mall.catalogue(shop).products == only[size].catalogue(shop).products
        assert mall.instance(shop) == only[size].instance(shop)
        assert list(mall.goals(shop)) == list(only[size].goals(shop))


# -- goals ------------------------------------------------------------------------------------------------------------


def worth(item: Product, goal: Goal, nouns: Nouns = NOUNS) -> float:
    """The reward of buying with the best options."""
    choices = every(*([None, *values] for _, values in item.options))
    return max(judge(item, goal, [value for value in choice if value], nouns).reward for choice in choices)


@pytest.mark.parametrize("difficulty", DIFFICULTIES, ids=str)
def test_exactly_one_product_of_the_shop_is_right(difficulty: Difficulty) -> None:
    for seed in range(3):
        shop, goal = customer(seed, difficulty)
        full = [item.asin for item in shop.catalogue.products if worth(item, goal) >= 1]
        assert full == [goal.asin]
        assert 0 < goal.price_limit - shop.catalogue.product(goal.asin).price < difficulty.price_step


def test_others_tempt(customers: list[Customer]) -> None:
    """By price, by options in no more than two articles, and by attributes: all but one of the three are right."""
    for shop, goal in customers:
        wrong: Counter[str] = Counter()
        for item in shop.catalogue.products:
            faults = ["price"] * (item.price > goal.price_limit)
            faults += ["options"] * (len(stocked_of(item, goal)) < len(goal.options))
            faults += ["attributes"] * (not set(goal.attributes) <= set(item.attributes))
            wrong["none" if not faults else faults[0] if len(faults) == 1 else "several"] += 1
        assert wrong["none"] == 1
        assert wrong["price"] >= 1
        assert 1 <= wrong["options"] <= 2
        assert wrong["attributes"] >= 1


def test_it_is_right_whatever_finds_the_nouns(customers: list[Customer]) -> None:
    for name in set(TAGGERS) - {"spacy", "auto"}:
        for shop, goal in customers[:5]:
            assert [item.asin for item in shop.catalogue.products if worth(item, goal, tagger(name)) >= 1] == [
                goal.asin
            ]


def test_a_goal_is_pinned(customers: list[Customer]) -> None:
    """What seeds mean must not change unnoticed: policies were trained, and goals held out, by them."""
    assert customers[0].goal.instruction == PINNED


def test_instructions_are_in_the_manner_of_the_original(customers: list[Customer]) -> None:
    for _, goal in customers:
        (color, value), (size, wide) = goal.options
        assert goal.instruction == (
            f"Find me {goal.attributes[0]}, {goal.attributes[1]} {goal.query} with {color}: {value}, and {size}: {wide}"
            f", and price lower than {goal.price_limit:.2f} dollars"
        )


def query(goal: Goal) -> str:
    return " ".join([*goal.attributes, goal.query])


@pytest.mark.parametrize("difficulty", DIFFICULTIES, ids=str)
@pytest.mark.parametrize(
    "words", [query, lambda goal: goal.query, lambda goal: goal.instruction], ids=["attributes", "kind", "all"]
)
def test_who_buys_the_first_result_buys_wrongly(words: Callable[[Goal], str], difficulty: Difficulty) -> None:
    """Even with the right options, as far as they are in stock."""
    right = 0
    for seed in range(100):
        shop, goal = customer(seed, difficulty)
        first = shop.product(listing(shop, tuple(words(goal).lower().split(" ")))[0])
        right += judge(first, goal, stocked_of(first, goal), NOUNS).reward >= 1
    assert right <= 10


def test_no_other_place_in_the_list_is_a_safe_choice_either(customers: list[Customer]) -> None:
    places: Counter[int] = Counter()
    for shop, goal in customers:
        found = [shop.product(place).asin for place in listing(shop, tuple(query(goal).split(" ")))]
        places[found.index(goal.asin)] += 1
    assert max(places.values()) < 0.4 * INSTANCES
    assert sum(count for place, count in places.items() if place < 10) > 0.95 * INSTANCES


def stocked_of(item: Product, goal: Goal) -> list[str]:
    """The values asked for that the product has."""
    return [value for name, value in goal.options if value in dict(item.options).get(name, ())]


def shop_around(
    shop: Shop, goal: Goal, words: str, *, price: bool = True, options: bool = True, attributes: bool = True
) -> bool:
    """Whether who reads titles and prices from the top of the first page, and looks for the options on an article's own
    page, succeeds in nine turns; each of the three can be ignored."""
    left = TURNS - 1  # the search
    for place in listing(shop, tuple(words.lower().split(" ")))[:10]:
        item = shop.product(place)
        if goal.query not in item.title or (price and item.price > goal.price_limit):
            continue
        if attributes and not all(attribute in item.title for attribute in goal.attributes):
            continue
        chosen = stocked_of(item, goal)
        if options and len(chosen) < len(goal.options):
            left -= 2  # there and back
            continue
        return left >= 2 + len(chosen) and judge(item, goal, chosen, NOUNS).reward >= 1
    return False


def share(customers: list[Customer], words: Callable[[Goal], str], **ignored: bool) -> float:
    return sum(shop_around(shop, goal, words(goal), **ignored) for shop, goal in customers) / len(customers)


def test_who_looks_at_everything_succeeds(customers: list[Customer]) -> None:
    """Without knowing more than the pages tell."""
    assert share(customers, query) >= 0.98


def test_price_options_attributes_and_search_terms_matter(customers: list[Customer]) -> None:
    assert share(customers, query, price=False) <= 0.1
    assert share(customers, query, options=False) <= 0.5
    assert share(customers, lambda goal: goal.query, attributes=False) <= 0.15
    assert share(customers, lambda goal: goal.query) <= 0.35  # 24 look-alikes, of which the first page shows ten
    assert share(customers, lambda goal: goal.query.split()[0]) <= 0.35


def test_fewer_look_alikes_are_easier() -> None:
    few = [customer(seed, Difficulty(products=36, look_alikes=12)) for seed in range(100)]
    assert share(few, lambda goal: goal.query) >= 0.55


# -- files ------------------------------------------------------------------------------------------------------------


def test_published_and_read_again_they_are_the_same(tmp_path: Path) -> None:
    mall = Mall((Difficulty(products=48),))
    catalogue = mall.catalogue(5)
    goals = [mall.goal(5, number) for number in mall.goals(5)]
    publish(tmp_path, catalogue.products, goals)
    read, account = read_catalogue(tmp_path / PRODUCTS, tmp_path / ATTRIBUTES, tmp_path / HUMAN)
    assert tuple(read.products) == catalogue.products
    assert (account.read, account.kept, dict(account.noted)) == (48, 48, {})
    synthetic, human = Goals(read), Goals(read, Asked.HUMAN)
    assert len(synthetic) == 48 * 9
    said = {goal.instruction.partition(", and price")[0] for goal in goals}
    assert {goal.instruction.partition(", and price")[0] for goal in human} == said
    assert said <= {goal.instruction.partition(", and price")[0] for goal in synthetic}


# -- determinism, arguments -------------------------------------------------------------------------------------------


def test_seeds_and_difficulties_tell_shops_apart() -> None:
    malls = [Mall(), Mall(seed=1), Mall((Difficulty(price_step=9),))]
    for one, other in combinations(malls, 2):
        assert one.catalogue(3).products != other.catalogue(3).products
    assert Mall().catalogue(3).products == Mall().catalogue(3).products


@pytest.mark.slow
def test_another_process_makes_the_same_shops() -> None:
    printed = {
        salt: subprocess.run(
            [sys.executable, "-c", PRINT_INSTANCES],
            cwd=ROOT,
            env={**os.environ, "PYTHONHASHSEED": salt, "PYTHONIOENCODING": "utf-8"},
            capture_output=True,
            encoding="utf-8",
            check=True,
        ).stdout
        for salt in ("1", "2")
    }
    assert printed["1"] == printed["2"]
    mall = Mall()
    here = []
    for seed in range(12):
        shop, goal = mall.instance(seed)
        here.append(f"{shop} {goal} {mall.goal(shop, goal)} {mall.catalogue(shop).products}\n")
    assert printed["1"] == "".join(here)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"products": 11}, "products is 11: give a whole number of at least 12."),
        ({"look_alikes": 3}, "look_alikes is 3: give a whole number of at least 12."),
        ({"attributes": 0}, "attributes is 0: give a whole number of at least 1."),
        ({"attributes": 7}, "attributes is 7: made products have at most 6."),
        ({"options": -1}, "options is -1: give a whole number of at least 0."),
        ({"options": 4}, "options is 4: made products have at most 3."),
        ({"option_values": 6}, "option_values is 6: made products have at most 5."),
        ({"option_values": 1.5}, "option_values is 1.5: give a whole number of at least 1."),
        ({"price_step": 1}, "price_step is 1: give a whole number of at least 2."),
        ({"products": 4000}, "products is 4000 and look_alikes 24, which makes 167 kinds: there are names for 150"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError) as error:
        Difficulty(**settings)  # type: ignore[arg-type]
    assert said in str(error.value)


@pytest.mark.parametrize(
    ("settings", "said"), [({"seed": -1}, "seed is -1"), ({"shops": 0}, "shops is 0: give a whole")]
)
def test_malls_that_make_no_sense_are_refused(settings: dict[str, int], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        Mall(**settings)


def test_shops_without_a_goal_end_with_a_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tsr_lightning.envs.webshop.generated_shops._TEMPTATIONS", range(0)
    )  # what nobody can be tempted by
    with pytest.raises(ConfigError, match=r"none of 100 shops with products 24, .* had a goal: raise look_alikes"):
        Mall((Difficulty(products=24),), seed=99).instance(0)

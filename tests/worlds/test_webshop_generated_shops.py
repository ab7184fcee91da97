"""Generated shops: the same in every process, words that the reward tells apart, and goals that no shortcut solves."""

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import astuple
from functools import lru_cache
from itertools import combinations, permutations
from itertools import product as every
from pathlib import Path

import pytest
from commands import python_output

from tests.webshop_fakes import product_by_asin
from tests.webshop_files import ATTRIBUTES, HUMAN, PRODUCTS, publish
from tsr_lightning.envs.make import make_env
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key
from tsr_lightning.rollout.instances import HeldOut, Instances
from tsr_lightning.worlds.webshop.colours import colour_in
from tsr_lightning.worlds.webshop.generated_shops import GeneratedShops, valid_goals
from tsr_lightning.worlds.webshop.goals import Goals, GoalSource
from tsr_lightning.worlds.webshop.lexicon import BRANDS, DEPARTMENTS, PRAISE, Department
from tsr_lightning.worlds.webshop.nouns import TAGGERS, NounTagger, tagger
from tsr_lightning.worlds.webshop.product import Goal, Product
from tsr_lightning.worlds.webshop.product_generator import Difficulty, generate_shop
from tsr_lightning.worlds.webshop.reading import read_catalogue
from tsr_lightning.worlds.webshop.reward import count_matched_attributes, fuzzy_match, matched_options, purchase_reward
from tsr_lightning.worlds.webshop.search import search_over
from tsr_lightning.worlds.webshop.shop import Shop, listing
from tsr_lightning.worlds.webshop.tasks import GeneratedTasks, ShoppingTask

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
from tsr_lightning.worlds.webshop.generated_shops import GeneratedShops
shops = GeneratedShops()
for seed in range(12):
    shop, goal = shops.instance(seed)
    print(shop, goal, shops.goal(shop, goal), shops.catalogue(shop).products)
"""

PINNED = "Find me washable, rustic patio chair with color: purple, and size: large, and price lower than 50.00 dollars"


@lru_cache(maxsize=1000)
def task(seed: int, difficulty: Difficulty) -> ShoppingTask:
    tasks = GeneratedTasks(GeneratedShops((difficulty,)), search_over, False)
    return tasks.task(*tasks.numbers(seed))


@pytest.fixture(scope="module")
def tasks() -> list[ShoppingTask]:
    return [task(seed, Difficulty()) for seed in range(INSTANCES)]


# -- lexicon ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("department", DEPARTMENTS, ids=lambda department: department.category)
def test_the_reward_confuses_no_words_of_a_department(department: Department) -> None:
    for one, other in permutations(department.attributes, 2):
        assert not fuzzy_match(one, other)
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
        assert not any(attribute in words.lower() for words in named)
    offered = [(name, value) for name, values in department.options for value in values]
    for wanted in offered:
        goal = Goal("", "", "", "", "", (), (wanted,), 0.0)
        assert [option for option in offered if matched_options(goal, option[1])] == [wanted]
    for _, value in offered:
        assert colour_in(value) == value


def test_the_vocabulary_is_small() -> None:
    """Fits, with and without a blank before each word, into an embedded policy's 640 tokens, of which 256 are bytes."""
    words = {*BRANDS, *PRAISE}
    for department in DEPARTMENTS:
        words |= {*department.nouns, *department.uses, *" ".join(department.attributes).split()}
        words |= {word for name, values in department.options for word in (name, *values)}
    assert 130 < len(words) < 170


# -- shops ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("difficulty", DIFFICULTIES, ids=str)
def test_shops_have_the_sizes_of_their_difficulty(difficulty: Difficulty) -> None:
    for seed in range(4):
        products = generate_shop(Key(seed), difficulty).catalogue.products
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


def test_the_last_kind_has_the_products_left_over() -> None:
    products = generate_shop(Key(1), Difficulty(products=40, look_alikes=24)).catalogue.products
    assert sorted(Counter(item.query for item in products).values()) == [16, 24]


def test_exactly_the_attributes_of_a_product_match(tasks: list[ShoppingTask]) -> None:
    known = {department.category: department.attributes for department in DEPARTMENTS}
    for shop, _ in tasks[:12]:
        for item in shop.catalogue.products:
            matched = [attribute for attribute in known[item.category] if count_matched_attributes(item, [attribute])]
            assert sorted(matched) == sorted(item.attributes)


def test_shops_share_no_product(tasks: list[ShoppingTask]) -> None:
    # all fields but the asin, which is unique within a shop only
    products = {astuple(item)[1:] for shop, _ in tasks for item in shop.catalogue.products}
    assert len(products) == INSTANCES * 120


def test_held_out_instances_share_no_product_with_training() -> None:
    env = make_env("tsr/WebShop-v0")
    instances = Instances([env], Key(1), HeldOut(instances=24))

    def products(seeds: Iterable[int]) -> set[tuple[object, ...]]:
        shops = GeneratedShops()
        return {astuple(item)[1:] for seed in seeds for item in shops.catalogue(shops.instance(seed)[0]).products}

    held, trained = (
        products(seed for _, seed in some) for some in (instances.held_out, instances.training(0, 48).instances)
    )
    assert (len(held), len(trained)) == (24 * 120, 48 * 120)
    assert not held & trained


def test_instances_vary(tasks: list[ShoppingTask]) -> None:
    goals = [goal for _, goal in tasks]
    assert len({goal.instruction for goal in goals}) == INSTANCES
    assert len({goal.query for goal in goals}) > 90  # of 150 kinds; 200 draws meet 110 of them on average
    assert len({goal.attributes for goal in goals}) > 120
    assert {option for goal in goals for option in goal.options} == {
        (name, value) for department in DEPARTMENTS for name, values in department.options[:2] for value in values
    }
    assert {goal.price_limit for goal in goals} >= {20.0, 30.0, 40.0, 50.0, 60.0, 70.0}
    lengths = Counter(len(item.title.split()) for shop, _ in tasks[:20] for item in shop.catalogue.products)
    assert set(lengths) <= {5, 6, 7}  # brand, two attributes of a word or two, use and noun
    assert max(lengths.values()) < 0.6 * sum(lengths.values())


def test_one_shop_can_have_hundreds_of_goals() -> None:
    shops = GeneratedShops((Difficulty(products=960),), count=1)
    numbers = list(valid_goals(shops.shop(0)))
    assert len(numbers) > 300
    assert len({shops.goal(0, number).instruction for number in numbers}) == len(numbers)
    chosen = [shops.instance(seed) for seed in range(40)]
    assert {shop for shop, _ in chosen} == {0}
    assert {number for _, number in chosen} <= set(numbers)
    assert len(set(chosen)) > 30


def test_shops_are_shared_by_the_seed_modulo_their_number() -> None:
    shops = GeneratedShops((Difficulty(products=24),), count=3)
    assert [shops.instance(seed)[0] for seed in range(7)] == [0, 1, 2, 0, 1, 2, 0]
    assert shops.catalogue(1) is shops.catalogue(1)


def test_each_shop_has_one_of_several_difficulties() -> None:
    easy, hard = Difficulty(products=24, attributes=1, options=0), Difficulty(products=48)
    shops, only = GeneratedShops((easy, hard)), {one.products: GeneratedShops((one,)) for one in (easy, hard)}
    sizes = [len(shops.catalogue(number)) for number in range(60)]
    assert 20 < sizes.count(24) < 40
    assert set(sizes) == {24, 48}
    for number, size in enumerate(sizes):  # each as if its difficulty were the only one
        assert shops.catalogue(number).products == only[size].catalogue(number).products
        assert shops.instance(number) == only[size].instance(number)
        assert list(valid_goals(shops.shop(number))) == list(valid_goals(only[size].shop(number)))


# -- goals ------------------------------------------------------------------------------------------------------------


def best_reward(item: Product, goal: Goal, nouns: NounTagger = NOUNS) -> float:
    """The reward of buying with the best options."""
    choices = every(*([None, *values] for _, values in item.options))
    return max(purchase_reward(item, goal, [value for value in choice if value], nouns).reward for choice in choices)


@pytest.mark.parametrize("difficulty", DIFFICULTIES, ids=str)
def test_exactly_one_product_of_the_shop_satisfies_the_goal(difficulty: Difficulty) -> None:
    for seed in range(3):
        shop, goal = task(seed, difficulty)
        full = [item.asin for item in shop.catalogue.products if best_reward(item, goal) >= 1]
        assert full == [goal.asin]
        assert 0 < goal.price_limit - product_by_asin(shop.catalogue, goal.asin).price < difficulty.price_step


def test_each_goal_has_distractors_that_fail_in_one_respect_only(tasks: list[ShoppingTask]) -> None:
    for shop, goal in tasks:
        wrong: Counter[str] = Counter()
        for item in shop.catalogue.products:
            faults = ["price"] * (item.price > goal.price_limit)
            faults += ["options"] * (len(offered_values(item, goal)) < len(goal.options))
            faults += ["attributes"] * (not set(goal.attributes) <= set(item.attributes))
            wrong["none" if not faults else faults[0] if len(faults) == 1 else "several"] += 1
        assert wrong["none"] == 1
        assert wrong["price"] >= 1
        assert 1 <= wrong["options"] <= 2
        assert wrong["attributes"] >= 1


def test_the_same_product_satisfies_the_goal_with_every_noun_tagger(tasks: list[ShoppingTask]) -> None:
    for name in set(TAGGERS) - {"spacy", "auto"}:
        for shop, goal in tasks[:5]:
            full = [item.asin for item in shop.catalogue.products if best_reward(item, goal, tagger(name)) >= 1]
            assert full == [goal.asin]


def test_the_goal_of_a_seed_is_pinned(tasks: list[ShoppingTask]) -> None:
    """The meaning of seeds must not change unnoticed: policies were trained, and goals held out, with them."""
    assert tasks[0].goal.instruction == PINNED


def test_instructions_follow_the_originals_template(tasks: list[ShoppingTask]) -> None:
    for _, goal in tasks:
        (first, value), (second, other) = goal.options
        assert goal.instruction == (
            f"Find me {', '.join(goal.attributes)} {goal.query} with {first}: {value}, and {second}: {other}"
            f", and price lower than {goal.price_limit:.2f} dollars"
        )


def query(goal: Goal) -> str:
    return " ".join([*goal.attributes, goal.query])


@pytest.mark.parametrize("difficulty", DIFFICULTIES, ids=str)
@pytest.mark.parametrize(
    "words", [query, lambda goal: goal.query, lambda goal: goal.instruction], ids=["attributes", "kind", "all"]
)
def test_buying_the_first_result_fails(words: Callable[[Goal], str], difficulty: Difficulty) -> None:
    """Even with the right options, as far as they are offered."""
    right = 0
    for seed in range(100):
        shop, goal = task(seed, difficulty)
        first = shop.product(listing(shop, tuple(words(goal).lower().split(" ")))[0])
        right += purchase_reward(first, goal, offered_values(first, goal), NOUNS).reward >= 1
    assert right <= 10


def test_no_fixed_place_in_the_results_is_a_safe_choice(tasks: list[ShoppingTask]) -> None:
    places: Counter[int] = Counter()
    for shop, goal in tasks:
        found = [shop.product(place).asin for place in listing(shop, tuple(query(goal).split(" ")))]
        places[found.index(goal.asin)] += 1
    assert max(places.values()) < 0.4 * INSTANCES
    assert sum(count for place, count in places.items() if place < 10) > 0.95 * INSTANCES


def offered_values(item: Product, goal: Goal) -> list[str]:
    """The goal's values that the product offers."""
    return [value for name, value in goal.options if value in dict(item.options).get(name, ())]


def heuristic_succeeds(
    shop: Shop, goal: Goal, words: str, *, price: bool = True, options: bool = True, attributes: bool = True
) -> bool:
    """True if a fixed heuristic succeeds in nine turns.

    It reads titles and prices from the top of the first page of results, and looks for the options on a product's own
    page. It can ignore price, options or attributes.
    """
    left = TURNS - 1  # the search
    for place in listing(shop, tuple(words.lower().split(" ")))[:10]:
        item = shop.product(place)
        if goal.query not in item.title or (price and item.price > goal.price_limit):
            continue
        if attributes and not all(attribute in item.title for attribute in goal.attributes):
            continue
        chosen = offered_values(item, goal)
        if options and len(chosen) < len(goal.options):
            left -= 2  # there and back
            continue
        return left >= 2 + len(chosen) and purchase_reward(item, goal, chosen, NOUNS).reward >= 1
    return False


def success_rate(tasks: list[ShoppingTask], words: Callable[[Goal], str], **checks: bool) -> float:
    return sum(heuristic_succeeds(shop, goal, words(goal), **checks) for shop, goal in tasks) / len(tasks)


def test_a_heuristic_that_checks_everything_on_the_pages_succeeds(tasks: list[ShoppingTask]) -> None:
    assert success_rate(tasks, query) >= 0.98


def test_ignoring_price_options_attributes_or_search_terms_fails(tasks: list[ShoppingTask]) -> None:
    assert success_rate(tasks, query, price=False) <= 0.1
    assert success_rate(tasks, query, options=False) <= 0.5
    assert success_rate(tasks, lambda goal: goal.query, attributes=False) <= 0.15
    assert success_rate(tasks, lambda goal: goal.query) <= 0.35  # the first page shows ten of 24 look-alikes
    assert success_rate(tasks, lambda goal: goal.query.split()[0]) <= 0.35


def test_fewer_look_alikes_are_easier() -> None:
    few = [task(seed, Difficulty(products=36, look_alikes=12)) for seed in range(100)]
    assert success_rate(few, lambda goal: goal.query) >= 0.55


# -- files ------------------------------------------------------------------------------------------------------------


def test_a_generated_shop_survives_a_round_trip_through_files(tmp_path: Path) -> None:
    shops = GeneratedShops((Difficulty(products=48),))
    catalogue = shops.catalogue(5)
    goals = [shops.goal(5, number) for number in valid_goals(shops.shop(5))]
    publish(tmp_path, catalogue.products, goals)
    read, report = read_catalogue(tmp_path / PRODUCTS, tmp_path / ATTRIBUTES, tmp_path / HUMAN)
    assert tuple(read.products) == catalogue.products
    assert (report.records, report.kept, dict(report.notes)) == (48, 48, {})
    synthetic, human = Goals(read), Goals(read, GoalSource.HUMAN)
    assert len(synthetic) == 48 * 9
    without_limit = {goal.instruction.partition(", and price")[0] for goal in goals}
    assert {goal.instruction.partition(", and price")[0] for goal in human} == without_limit
    assert without_limit <= {goal.instruction.partition(", and price")[0] for goal in synthetic}


# -- determinism, arguments -------------------------------------------------------------------------------------------


def test_another_seed_or_difficulty_gives_other_shops() -> None:
    different = [GeneratedShops(), GeneratedShops(seed=1), GeneratedShops((Difficulty(price_step=9),))]
    for one, other in combinations(different, 2):
        assert one.catalogue(3).products != other.catalogue(3).products
    assert GeneratedShops().catalogue(3).products == GeneratedShops().catalogue(3).products


@pytest.mark.slow
def test_another_process_generates_the_same_shops() -> None:
    printed = {salt: python_output(PRINT_INSTANCES, hash_seed=salt) for salt in ("1", "2")}
    assert printed["1"] == printed["2"]
    shops = GeneratedShops()
    here = []
    for seed in range(12):
        shop, goal = shops.instance(seed)
        here.append(f"{shop} {goal} {shops.goal(shop, goal)} {shops.catalogue(shop).products}\n")
    assert printed["1"] == "".join(here)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"products": 11}, "products is 11: give a whole number of at least 12."),
        ({"look_alikes": 3}, "look_alikes is 3: give a whole number of at least 12."),
        ({"attributes": 0}, "attributes is 0: give a whole number of at least 1."),
        ({"attributes": 7}, "attributes is 7: generated products have at most 6."),
        ({"options": -1}, "options is -1: give a whole number of at least 0."),
        ({"options": 4}, "options is 4: generated products have at most 3."),
        ({"option_values": 6}, "option_values is 6: generated products have at most 5."),
        ({"option_values": 1.5}, "option_values is 1.5: give a whole number of at least 1."),
        ({"price_step": 1}, "price_step is 1: give a whole number of at least 2."),
        ({"products": 4000}, "products is 4000: with look_alikes 24 that makes 167 kinds of at most 150; raise"),
    ],
)
def test_invalid_difficulties_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        Difficulty(**settings)  # type: ignore[arg-type]
    assert str(error.value).startswith(f"WebShopEnv.difficulty.{message}")


@pytest.mark.parametrize("difficulty", [[], (), [1], [[]], [None], [{}, 1], "easy", "", 0])
def test_difficulties_that_are_no_mappings_are_refused(difficulty: object) -> None:
    with pytest.raises(ConfigError) as error:
        make_env("tsr/WebShop-v0", difficulty=difficulty)
    assert str(error.value).startswith(f"WebShopEnv.difficulty is {difficulty!r}: give a mapping such as {{products")


@pytest.mark.parametrize("data", [5, [], {}])
def test_data_that_is_no_path_is_refused(data: object) -> None:
    with pytest.raises(ConfigError, match=r"WebShopEnv\.data is .*: give the path of the published files"):
        make_env("tsr/WebShop-v0", data=data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [({"seed": -1}, "catalogue_seed is -1"), ({"count": 0}, "shops is 0: give a whole")],
)
def test_invalid_seeds_and_counts_are_refused(settings: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=f"^WebShopEnv.{message}"):
        GeneratedShops(**settings)


def test_a_difficulty_without_valid_goals_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tsr_lightning.worlds.webshop.generated_shops._OPTION_DISTRACTORS", range(0))  # never satisfied
    with pytest.raises(ConfigError, match=r"WebShopEnv\.difficulty is .*products=24.*: none of 100 shops has a goal"):
        GeneratedShops((Difficulty(products=24),), seed=99).instance(0)

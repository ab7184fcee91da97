"""The oracle: the best reward in reach by a shortest path, from any page."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tests.webshop_fakes import product_by_asin
from tsr_lightning.envs.base import HasOracle
from tsr_lightning.envs.make import make_env
from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.env import WebShopEnv
from tsr_lightning.worlds.webshop.generated_shops import GeneratedShops
from tsr_lightning.worlds.webshop.goals import Goals
from tsr_lightning.worlds.webshop.nouns import tagger
from tsr_lightning.worlds.webshop.oracle import next_action
from tsr_lightning.worlds.webshop.pages import DONE, INDEX, ITEM, Page, act, clickables
from tsr_lightning.worlds.webshop.product import Goal, Product
from tsr_lightning.worlds.webshop.product_generator import Difficulty
from tsr_lightning.worlds.webshop.prompts import legal_actions
from tsr_lightning.worlds.webshop.reading import read_catalogue
from tsr_lightning.worlds.webshop.reward import purchase_reward
from tsr_lightning.worlds.webshop.search import search_over
from tsr_lightning.worlds.webshop.shop import Shop
from tsr_lightning.worlds.webshop.tasks import GeneratedTasks, ShoppingTask

NOUNS = tagger("rule")
TURNS = 9
SMALL = Difficulty(products=12, look_alikes=12, option_values=2)


def task(seed: int, difficulty: Difficulty) -> ShoppingTask:
    tasks = GeneratedTasks(GeneratedShops((difficulty,)), search_over, False)
    return tasks.task(*tasks.numbers(seed))


def final_reward(shop: Shop, goal: Goal, page: Page) -> float | None:
    """The reward of the purchase; None if there was none."""
    if page.kind != DONE or page.place is None:
        return None
    return purchase_reward(shop.product(page.place), goal, [value for _, value in page.options], NOUNS).reward


def played(shop: Shop, goal: Goal, page: Page, left: int) -> tuple[float | None, list[str]]:
    """The oracle's reward from a page, and its actions."""
    actions: list[str] = []
    while page.kind != DONE and len(actions) < left:
        actions.append(next_action(shop, goal, page, NOUNS, left - len(actions)))
        result = act(shop, page, actions[-1])
        assert result is not None
        page = result
    return final_reward(shop, goal, page), actions


def moves(goal: Goal) -> Callable[[Shop, Page], list[str]]:
    """All clicks of a page, and on the first page searches with the goal's words."""
    kind = " ".join([*goal.attributes, goal.query])
    queries = [kind, goal.query, " ".join([kind, *(value for _, value in goal.options)]), goal.instruction.lower()]

    def from_here(shop: Shop, page: Page) -> list[str]:
        if page.kind == INDEX:
            return [f"search[{query}]" for query in queries]
        return [f"click[{name}]" for name in clickables(shop, page)]

    return from_here


def best(shop: Shop, goal: Goal, page: Page, left: int) -> tuple[float, int]:
    """The best reward in reach, -1 for no purchase, and minus the fewest actions to it, by brute force."""
    from_here = moves(goal)

    @cache
    def tried(page: Page, left: int) -> tuple[float, int]:
        reward = final_reward(shop, goal, page)
        if reward is not None or not left:
            return (-1.0 if reward is None else reward), 0
        found = (-1.0, 0)
        for action in from_here(shop, page):
            result = act(shop, page, action)
            if result is not None:
                reward, actions = tried(result, left - 1)
                found = max(found, (reward, actions - 1))
        return found

    return tried(page, left)


# -- generated shops --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "difficulty",
    [
        Difficulty(),
        Difficulty(products=36, look_alikes=12, options=1),
        Difficulty(attributes=3, options=3, price_step=3),
    ],
    ids=str,
)
def test_it_always_succeeds_by_the_shortest_path(difficulty: Difficulty) -> None:
    for seed in range(60):
        shop, goal = task(seed, difficulty)
        reward, actions = played(shop, goal, Page(), TURNS)
        assert reward == 1
        assert len(actions) == 3 + difficulty.options  # a search, the product, its options, the purchase
        assert goal.query in actions[0]
        if difficulty == Difficulty():  # here the first query is enough; elsewhere another may save turning a page
            assert actions[0] == f"search[{' '.join([*goal.attributes, goal.query])}]"
        assert actions[1] == f"click[{goal.asin}]"
        assert actions[2:-1] == [f"click[{value}]" for _, value in goal.options]
        assert actions[-1] == "click[buy now]"


@pytest.mark.parametrize("seed", range(8))
def test_it_equals_brute_force_from_random_pages_with_few_actions_left(seed: int) -> None:
    shop, goal = task(seed, SMALL)
    from_here = moves(goal)
    for walk in range(8):
        key = Key(seed).fold_in("walk", walk)
        page = Page()
        for step in range(key.bits() % 7):
            ahead = [action for action in from_here(shop, page) if action != "click[buy now]"]
            page = act(shop, page, ahead[key.bits(step + 1) % len(ahead)]) or page
        for left in range(1, 6):
            reward, actions = played(shop, goal, page, left)
            wanted, steps = best(shop, goal, page, left)
            assert (-1.0 if reward is None else reward) == wanted
            if reward is not None:
                assert len(actions) == -steps


def at(shop: Shop, *actions: str) -> Page:
    page = Page()
    for action in actions:
        result = act(shop, page, action)
        assert result is not None, action
        page = result
    return page


def test_it_recovers_from_wrong_pages_and_options() -> None:
    shop, goal = task(0, Difficulty())
    search = f"search[{' '.join([*goal.attributes, goal.query])}]"
    open_it = f"click[{goal.asin}]"
    (_, first), (name, second) = goal.options
    other = next(value for value in dict(product_by_asin(shop.catalogue, goal.asin).options)[name] if value != second)
    listed = at(shop, search)
    wrong = next(name for name, target in clickables(shop, listed).items() if target.place and name != goal.asin)
    for page, ahead in [
        (at(shop, search, open_it, "click[features]"), ["click[< prev]", f"click[{first}]", f"click[{second}]"]),
        (at(shop, search, open_it, f"click[{other}]"), [f"click[{first}]", f"click[{second}]"]),
        (at(shop, search, open_it, f"click[{second}]"), [f"click[{first}]"]),
        (at(shop, search, "click[next >]"), ["click[< prev]", open_it, f"click[{first}]", f"click[{second}]"]),
        (at(shop, search, f"click[{wrong}]"), ["click[< prev]", open_it, f"click[{first}]", f"click[{second}]"]),
        (at(shop, "search[xyzzy]"), ["click[back to search]", search, open_it, f"click[{first}]", f"click[{second}]"]),
    ]:
        assert played(shop, goal, page, TURNS) == (1.0, [*ahead, "click[buy now]"])


def test_few_actions_left_limit_the_reward() -> None:
    shop, goal = task(0, Difficulty())
    page = at(shop, f"search[{' '.join([*goal.attributes, goal.query])}]")
    # two attributes, two options and the price are five parts; each option costs a click
    assert [played(shop, goal, page, left)[0] for left in (2, 3, 4)] == [3 / 5, 4 / 5, 1]
    assert played(shop, goal, page, 1)[0] is None
    assert next_action(shop, goal, page, NOUNS, 1) == f"click[{goal.asin}]"  # planned without a limit


# -- odd shops --------------------------------------------------------------------------------------------------------


LAMP = Product("A1", "Oak lamp", "", ("",), "garden", "lamp", "Home › Lamps", ("oak",), (), (10.0,), 10.0)
SHELVES = [replace(LAMP, asin=f"B{n}", title="Iron shelf", query="shelf", attributes=("iron",)) for n in range(40)]
GOAL = Goal("A1", "Find me oak lamp, and price lower than 20.00 dollars", "lamp", "Oak lamp", "", ("oak",), (), 20.0)


def shop_of(*products: Product, search: Callable[[str], list[int]]) -> Shop:
    return Shop(Catalogue(products), search)


def test_it_searches_for_the_title_where_the_goals_words_find_nothing() -> None:
    tall = replace(LAMP, title="Tall oak lamp")
    shop = shop_of(tall, search=lambda query: [0] if query == "tall oak lamp" else [])
    goal = replace(GOAL, name="Tall oak lamp")
    assert played(shop, goal, Page(), TURNS) == (1.0, ["search[tall oak lamp]", "click[a1]", "click[buy now]"])


@pytest.mark.parametrize(("limit", "reward"), [(20.0, 1.0), (5.0, 1 / 2)])
def test_it_does_not_search_for_the_title_to_save_an_action(limit: float, reward: float) -> None:
    shop = shop_of(
        *SHELVES[:10],
        replace(LAMP, title="Tall oak lamp"),
        search=lambda query: [10] if query == "tall oak lamp" else list(range(11)),
    )
    goal = replace(GOAL, name="Tall oak lamp", price_limit=limit)
    actions = ["search[oak lamp]", "click[next >]", "click[a1]", "click[buy now]"]
    assert played(shop, goal, Page(), TURNS) == (reward, actions)


def test_it_searches_even_if_nothing_is_found() -> None:
    shop = shop_of(LAMP, search=lambda query: [])
    assert next_action(shop, GOAL, Page(), NOUNS, TURNS) == "search[oak lamp]"
    assert next_action(shop, GOAL, at(shop, "search[oak lamp]"), NOUNS, TURNS) == "click[back to search]"


def test_it_turns_pages() -> None:
    shop = shop_of(*SHELVES[:25], LAMP, *SHELVES[25:], search=lambda query: list(range(41)))
    actions = ["search[oak lamp]", "click[next >]", "click[next >]", "click[a1]", "click[buy now]"]
    assert played(shop, GOAL, Page(), TURNS) == (1.0, actions)
    beyond = at(shop, "search[x]", *["click[next >]"] * 3)
    assert played(shop, GOAL, beyond, TURNS) == (1.0, ["click[< prev]", "click[a1]", "click[buy now]"])


def test_it_buys_another_product_that_is_as_good_and_nearer() -> None:
    shop = shop_of(*SHELVES[:12], LAMP, replace(LAMP, asin="A2"), search=lambda query: [13, *range(13)])
    assert played(shop, GOAL, Page(), TURNS) == (1.0, ["search[oak lamp]", "click[a2]", "click[buy now]"])


def test_it_clicks_expressible_values_only_and_one_for_two_matching_options() -> None:
    lamp = replace(LAMP, options=(("size", ("huge", "oval [dark]", "round small")),))
    shop = shop_of(lamp, search=lambda query: [0])
    for values, reward, clicks in [
        (("oval [dark]",), 2 / 3, []),
        (("round", "small"), 1.0, ["click[round small]"]),
        (("small", "huge"), 3 / 4, ["click[huge]"]),
    ]:
        goal = replace(GOAL, options=tuple(("", value) for value in values))
        actions = ["search[oak lamp]", "click[a1]", *clicks, "click[buy now]"]
        assert played(shop, goal, Page(), TURNS) == (reward, actions)


def test_it_uses_the_random_listing_shown() -> None:
    pine = replace(LAMP, asin="A2", title="Pine lamp", attributes=())
    shop = shop_of(LAMP, pine, search=lambda query: [])
    page = act(shop, Page(), "search[<r>]", draw=3)
    assert page is not None
    assert played(shop, GOAL, page, TURNS) == (1.0, ["click[a1]", "click[buy now]"])
    other = at(shop, "search[<r>]", "click[a2]")
    assert next_action(shop, GOAL, other, NOUNS, TURNS) == "click[buy now]"  # going back leads to another listing


# -- noise ------------------------------------------------------------------------------------------------------------


def test_noise_is_keyed_and_has_the_given_probability() -> None:
    env = WebShopEnv(prompt_style="original")
    env.reset(seed=1)
    shop, goal = env.task
    search = f"search[{goal.query}]"
    env.step(search)
    legal = env.legal_actions()
    assert tuple(legal) == legal_actions(shop, at(shop, search), goal.instruction)
    counts = Counter(env.oracle(0.4, Key(5).fold_in(index)) for index in range(1000))
    # a random action is the best one once in `len(legal)`; five standard deviations are 0.08
    assert counts[env.oracle()] / 1000 == pytest.approx(0.6 + 0.4 / len(legal), abs=0.08)
    assert set(counts) == set(legal)
    assert env.oracle(1.0, Key(7)) == env.oracle(1.0, Key(7))


def successes(noise: float) -> int:
    """The number of successes in 60 episodes."""
    env = make_env("tsr/WebShop-v0")
    assert isinstance(env, HasOracle)
    won = 0
    for seed in range(60):
        env.reset(seed=seed)
        ended, turns, success = False, 0, False
        while not ended:
            _, _, terminated, truncated, info = env.step(env.oracle(noise, Key(seed).fold_in(turns)))
            ended, turns, success = terminated or truncated, turns + 1, info["success"]
            assert info["action_is_valid"]
        won += success
    return won


def test_it_solves_every_instance_and_noise_costs_successes() -> None:
    assert successes(0.0) == 60
    assert 45 <= successes(0.2) < 60  # it recovers from random actions, but a wrong purchase is final
    assert successes(1.0) <= 1  # random actions


# -- published products -----------------------------------------------------------------------------------------------


def test_no_published_product_earns_more_than_the_oracle(shared_data: Path) -> None:
    folder = shared_data / "webshop"
    catalogue, _ = read_catalogue(folder / "items_shuffle_1000.json.gz", folder / "items_ins_v2_1000.json.gz")
    shop, goals = Shop(catalogue, search_over(catalogue)), Goals(catalogue)
    rewards = []
    for goal in goals[::115]:
        reward, actions = played(shop, goal, Page(), TURNS)
        assert reward is not None
        assert len(actions) <= TURNS
        # a search that lists all products, so that each can be opened and its options tried
        everything = Shop(catalogue, lambda query: range(len(catalogue)))
        at_best = max(
            played(everything, goal, Page(ITEM, ("all",), 1, place), TURNS)[0] or 0.0
            for place, product in enumerate(catalogue.products)
            if product.asin == goal.asin or product.query == goal.query
        )
        assert reward >= at_best
        rewards.append(reward)
    # the rest is out of reach: a value such as "2005grey" does not match the option "2005grey" (see purchase_reward)
    assert sum(reward >= 1 for reward in rewards) > 0.85 * len(rewards)

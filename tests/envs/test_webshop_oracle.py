"""The oracle: always the best reward in reach, by no longer a way than needed, from wherever it is asked."""

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from tsr_lightning.envs.base import HasOracle
from tsr_lightning.envs.make import make_env
from tsr_lightning.envs.webshop.catalogue import Catalogue
from tsr_lightning.envs.webshop.generated_shops import Mall
from tsr_lightning.envs.webshop.goals import Goals
from tsr_lightning.envs.webshop.nouns import tagger
from tsr_lightning.envs.webshop.oracle import next_action, turn
from tsr_lightning.envs.webshop.pages import DONE, INDEX, Page, act, clickables
from tsr_lightning.envs.webshop.product import Goal, Product
from tsr_lightning.envs.webshop.product_generator import Difficulty
from tsr_lightning.envs.webshop.prompts import possible
from tsr_lightning.envs.webshop.reading import read_catalogue
from tsr_lightning.envs.webshop.reward import judge
from tsr_lightning.envs.webshop.search import search_over
from tsr_lightning.envs.webshop.shop import Shop
from tsr_lightning.envs.webshop.tasks import Customer, ManyShops
from tsr_lightning.rng import Key

NOUNS = tagger("rule")
TURNS = 9
SMALL = Difficulty(products=12, look_alikes=12, option_values=2)

Walk = Callable[[Page], list[str]]


def customer(seed: int, difficulty: Difficulty) -> Customer:
    market = ManyShops(Mall((difficulty,)), search_over, False)
    return market.customer(*market.numbers(seed))


def paid(shop: Shop, goal: Goal, page: Page) -> float | None:
    """The reward of the purchase; None if there was none."""
    if page.kind != DONE or page.place is None:
        return None
    return judge(shop.product(page.place), goal, [value for _, value in page.options], NOUNS).reward


def played(shop: Shop, goal: Goal, page: Page, left: int) -> tuple[float | None, list[str]]:
    """What the oracle gets from here, and by which actions."""
    actions: list[str] = []
    while page.kind != DONE and len(actions) < left:
        actions.append(next_action(shop, goal, page, NOUNS, left - len(actions)))
        there = act(shop, page, actions[-1])
        assert there is not None
        page = there
    return paid(shop, goal, page), actions


def moves(goal: Goal) -> Callable[[Shop, Page], list[str]]:
    """All that can be clicked, and on the first page the searches that a goal's words give."""
    kind = " ".join([*goal.attributes, goal.query])
    queries = [kind, goal.query, " ".join([kind, *(value for _, value in goal.options)]), goal.instruction.lower()]

    def from_here(shop: Shop, page: Page) -> list[str]:
        if page.kind == INDEX:
            return [f"search[{query}]" for query in queries]
        return [f"click[{name}]" for name in clickables(shop, page)]

    return from_here


def best(shop: Shop, goal: Goal, page: Page, left: int) -> tuple[float, int]:
    """The best reward in reach and, negative, the fewest actions to it, by trying everything; -1 for no purchase."""
    from_here = moves(goal)

    @cache
    def tried(page: Page, left: int) -> tuple[float, int]:
        reward = paid(shop, goal, page)
        if reward is not None or not left:
            return (-1.0 if reward is None else reward), 0
        found = (-1.0, 0)
        for action in from_here(shop, page):
            there = act(shop, page, action)
            if there is not None:
                reward, actions = tried(there, left - 1)
                found = max(found, (reward, actions - 1))
        return found

    return tried(page, left)


# -- made shops -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "difficulty",
    [
        Difficulty(),
        Difficulty(products=36, look_alikes=12, options=1),
        Difficulty(attributes=3, options=3, price_step=3),
    ],
    ids=str,
)
def test_it_always_succeeds(difficulty: Difficulty) -> None:
    for seed in range(60):
        shop, goal = customer(seed, difficulty)
        reward, actions = played(shop, goal, Page(), TURNS)
        assert reward == 1
        assert len(actions) == 3 + difficulty.options  # a search, the article, its options, the purchase
        assert goal.query in actions[0]
        if difficulty == Difficulty():  # the first words that are tried do; elsewhere others may save turning a page
            assert actions[0] == f"search[{' '.join([*goal.attributes, goal.query])}]"
        assert actions[1] == f"click[{goal.asin}]"
        assert actions[2:-1] == [f"click[{value}]" for _, value in goal.options]
        assert actions[-1] == "click[buy now]"


@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_better_or_shorter_from_anywhere(seed: int) -> None:
    """Against trying everything, from pages that random walks lead to, with few actions left."""
    shop, goal = customer(seed, SMALL)
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
        there = act(shop, page, action)
        assert there is not None, action
        page = there
    return page


def test_it_finds_its_way_back() -> None:
    shop, goal = customer(0, Difficulty())
    search = f"search[{' '.join([*goal.attributes, goal.query])}]"
    article = f"click[{goal.asin}]"
    (_, first), (name, second) = goal.options
    other = next(value for value in dict(shop.catalogue.product(goal.asin).options)[name] if value != second)
    listed = at(shop, search)
    wrong = next(name for name, target in clickables(shop, listed).items() if target.place and name != goal.asin)
    for page, ahead in [
        (at(shop, search, article, "click[features]"), ["click[< prev]", f"click[{first}]", f"click[{second}]"]),
        (at(shop, search, article, f"click[{other}]"), [f"click[{first}]", f"click[{second}]"]),
        (at(shop, search, article, f"click[{second}]"), [f"click[{first}]"]),
        (at(shop, search, "click[next >]"), ["click[< prev]", article, f"click[{first}]", f"click[{second}]"]),
        (at(shop, search, f"click[{wrong}]"), ["click[< prev]", article, f"click[{first}]", f"click[{second}]"]),
        (at(shop, "search[xyzzy]"), ["click[back to search]", search, article, f"click[{first}]", f"click[{second}]"]),
    ]:
        assert played(shop, goal, page, TURNS) == (1.0, [*ahead, "click[buy now]"])


def test_it_takes_what_the_actions_left_allow() -> None:
    shop, goal = customer(0, Difficulty())
    page = at(shop, f"search[{' '.join([*goal.attributes, goal.query])}]")
    # two attributes, two options and the price make five parts; each option costs a click
    assert [played(shop, goal, page, left)[0] for left in (2, 3, 4)] == [3 / 5, 4 / 5, 1]
    assert played(shop, goal, page, 1)[0] is None
    assert next_action(shop, goal, page, NOUNS, 1) == f"click[{goal.asin}]"  # as if there were time


# -- odd shops --------------------------------------------------------------------------------------------------------


LAMP = Product("A1", "Oak lamp", "", ("",), "garden", "lamp", "Home › Lamps", ("oak",), (), (10.0,), 10.0)
SHELVES = [replace(LAMP, asin=f"B{n}", title="Iron shelf", query="shelf", attributes=("iron",)) for n in range(40)]
GOAL = Goal("A1", "Find me oak lamp, and price lower than 20.00 dollars", "lamp", "Oak lamp", "", ("oak",), (), 20.0)


def shop_of(*products: Product, search: Callable[[str], list[int]]) -> Shop:
    return Shop(Catalogue(products), search)


def test_where_no_word_of_the_goal_finds_it_the_title_does() -> None:
    tall = replace(LAMP, title="Tall oak lamp")
    shop = shop_of(tall, search=lambda query: [0] if query == "tall oak lamp" else [])
    goal = replace(GOAL, name="Tall oak lamp")
    assert played(shop, goal, Page(), TURNS) == (1.0, ["search[tall oak lamp]", "click[a1]", "click[buy now]"])


@pytest.mark.parametrize(("limit", "reward"), [(20.0, 1.0), (5.0, 1 / 2)])
def test_the_title_is_not_searched_for_only_to_save_an_action(limit: float, reward: float) -> None:
    shop = shop_of(
        *SHELVES[:10],
        replace(LAMP, title="Tall oak lamp"),
        search=lambda query: [10] if query == "tall oak lamp" else list(range(11)),
    )
    goal = replace(GOAL, name="Tall oak lamp", price_limit=limit)
    actions = ["search[oak lamp]", "click[next >]", "click[a1]", "click[buy now]"]
    assert played(shop, goal, Page(), TURNS) == (reward, actions)


def test_where_nothing_is_found_it_searches_all_the_same() -> None:
    shop = shop_of(LAMP, search=lambda query: [])
    assert next_action(shop, GOAL, Page(), NOUNS, TURNS) == "search[oak lamp]"
    assert next_action(shop, GOAL, at(shop, "search[oak lamp]"), NOUNS, TURNS) == "click[back to search]"


def test_it_turns_pages() -> None:
    shop = shop_of(*SHELVES[:25], LAMP, *SHELVES[25:], search=lambda query: list(range(41)))
    actions = ["search[oak lamp]", "click[next >]", "click[next >]", "click[a1]", "click[buy now]"]
    assert played(shop, GOAL, Page(), TURNS) == (1.0, actions)
    beyond = at(shop, "search[x]", *["click[next >]"] * 3)
    assert played(shop, GOAL, beyond, TURNS) == (1.0, ["click[< prev]", "click[a1]", "click[buy now]"])


def test_another_article_that_is_as_good_and_nearer_will_do() -> None:
    shop = shop_of(*SHELVES[:12], LAMP, replace(LAMP, asin="A2"), search=lambda query: [13, *range(13)])
    assert played(shop, GOAL, Page(), TURNS) == (1.0, ["search[oak lamp]", "click[a2]", "click[buy now]"])


def test_options_that_cannot_be_clicked_are_left() -> None:
    """A value with an opening bracket cannot be said; one that satisfies two wishes is clicked once."""
    lamp = replace(LAMP, options=(("size", ("huge", "oval [dark]", "round small")),))
    shop = shop_of(lamp, search=lambda query: [0])
    for wishes, reward, clicks in [
        (("oval [dark]",), 2 / 3, []),
        (("round", "small"), 1.0, ["click[round small]"]),
        (("small", "huge"), 3 / 4, ["click[huge]"]),
    ]:
        goal = replace(GOAL, options=tuple(("", wish) for wish in wishes))
        actions = ["search[oak lamp]", "click[a1]", *clicks, "click[buy now]"]
        assert played(shop, goal, Page(), TURNS) == (reward, actions)


def test_a_random_listing_is_taken_as_it_stands() -> None:
    pine = replace(LAMP, asin="A2", title="Pine lamp", attributes=())
    shop = shop_of(LAMP, pine, search=lambda query: [])
    page = act(shop, Page(), "search[<r>]", draw=3)
    assert page is not None
    assert played(shop, GOAL, page, TURNS) == (1.0, ["click[a1]", "click[buy now]"])
    other = at(shop, "search[<r>]", "click[a2]")
    assert next_action(shop, GOAL, other, NOUNS, TURNS) == "click[buy now]"  # half of it: the way back leads elsewhere


# -- noise ------------------------------------------------------------------------------------------------------------


def test_noise_is_keyed_and_as_frequent_as_asked() -> None:
    shop, goal = customer(1, Difficulty())

    def said(page: Page, noise: float, key: Key) -> tuple[str, ...]:
        legal: Walk = lambda page: possible(shop, page, goal.instruction)  # noqa: E731
        return turn(shop, goal, page, NOUNS, legal, actions=1, left=TURNS, noise=noise, key=key)

    page = at(shop, f"search[{goal.query}]")
    clear = said(page, 0.0, Key(0))
    counts = Counter(said(page, 0.4, Key(5).fold_in(index)) for index in range(1000))
    choices = len(possible(shop, page, goal.instruction))
    # a random action is the best one too, once in `choices`; five standard deviations are 0.08
    assert counts[clear] / 1000 == pytest.approx(0.6 + 0.4 / choices, abs=0.08)
    assert len(counts) == choices
    assert {said(page, 1.0, Key(7)) for _ in range(3)} == {said(page, 1.0, Key(7))}
    assert {action for (action,) in counts} <= set(possible(shop, page, goal.instruction))


def test_a_turn_of_several_actions_ends_with_the_purchase() -> None:
    shop, goal = customer(2, Difficulty())
    legal: Walk = lambda page: possible(shop, page, goal.instruction)  # noqa: E731
    wanted = played(shop, goal, Page(), TURNS)[1]
    assert turn(shop, goal, Page(), NOUNS, legal, actions=3, left=TURNS) == tuple(wanted[:3])
    assert turn(shop, goal, Page(), NOUNS, legal, actions=20, left=TURNS) == tuple(wanted)
    assert turn(shop, goal, Page(), NOUNS, legal, actions=2, left=0) == ()


def successes(noise: float) -> int:
    """Of 60 episodes in the environment."""
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


def test_in_the_environment() -> None:
    assert successes(0.0) == 60
    assert 45 <= successes(0.2) < 60  # it goes on from wherever noise leads, but a wrong purchase is final
    assert successes(1.0) <= 1  # a random buyer


# -- published products -----------------------------------------------------------------------------------------------


def test_on_published_products_nothing_in_the_shop_is_better(shared_data: Path) -> None:
    folder = shared_data / "webshop"
    catalogue, _ = read_catalogue(folder / "items_shuffle_1000.json.gz", folder / "items_ins_v2_1000.json.gz")
    shop, goals = Shop(catalogue, search_over(catalogue)), Goals(catalogue)
    rewards = []
    for goal in goals[::115]:
        reward, actions = played(shop, goal, Page(), TURNS)
        assert reward is not None
        assert len(actions) <= TURNS
        # an own list of all articles, so that each can be opened and its options tried
        everything = Shop(catalogue, lambda query: range(len(catalogue)))
        at_best = max(
            played(everything, goal, act_to(everything, place), TURNS)[0] or 0.0
            for place in range(len(catalogue))
            if worth_a_look(catalogue.products[place], goal)
        )
        assert reward >= at_best
        rewards.append(reward)
    # the rest cannot be had: a value such as "2005grey" does not satisfy the wish for it (see reward.judge)
    assert sum(reward >= 1 for reward in rewards) > 0.85 * len(rewards)


def worth_a_look(product: Product, goal: Goal) -> bool:
    return product.asin == goal.asin or product.query == goal.query


def act_to(shop: Shop, place: int) -> Page:
    return Page("item_page", ("all",), 1, place)

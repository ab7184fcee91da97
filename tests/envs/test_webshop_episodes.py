"""Episodes played in the original WebShop, replayed: every page, every clickable, every reward and all of its parts.

What cannot be the same is put in from the record: rankings (its search was another one), price limits, and the prices
of articles with a range of prices (the original draws both unseeded). Its tagger called every word of letters a noun.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tsr_lightning.envs.webshop.catalogue import Catalogue
from tsr_lightning.envs.webshop.env import AS_ORIGINAL, WebShopEnv
from tsr_lightning.envs.webshop.goals import Goals, with_limit
from tsr_lightning.envs.webshop.pages import clickables, has_search_bar
from tsr_lightning.envs.webshop.product import Goal
from tsr_lightning.envs.webshop.reading import read_catalogue
from tsr_lightning.envs.webshop.shop import Shop
from tsr_lightning.envs.webshop.tasks import Customer

PUBLISHED = Path(__file__).parents[2] / ".." / "shared" / "data" / "webshop"
EPISODES = 120

pytestmark = pytest.mark.skipif(not PUBLISHED.exists(), reason=f"no published data in {PUBLISHED}")

Episode = dict[str, Any]


@cache
def catalogue() -> Catalogue:
    return read_catalogue(PUBLISHED / "items_shuffle_1000.json.gz", PUBLISHED / "items_ins_v2_1000.json.gz")[0]


@cache
def goals() -> Goals:
    return Goals(catalogue())


@cache
def episodes() -> list[Episode]:
    with gzip.open(PUBLISHED / "episodes.jsonl.gz", "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


@dataclass(frozen=True)
class Recorded:
    """The customer of one episode."""

    customer_: Customer

    def numbers(self, seed: int) -> tuple[int, int]:
        return 0, 0

    def customer(self, shop: int, goal: int) -> Customer:
        return self.customer_


def recorded_shop(episode: Episode) -> Shop:
    """Our products, with the price that was drawn for the bought one, and the rankings that were shown."""
    known = catalogue()
    rankings = {
        step["action"].removeprefix("search[")[:-1].lower(): step["ranking"]
        for step in episode["steps"]
        if "ranking" in step
    }
    places = {query: [known.place(asin) for asin in ranking] for query, ranking in rankings.items()}
    if "bought" not in episode:
        return Shop(known, places.__getitem__)
    bought = known.place(episode["bought"]["asin"])
    assert bought is not None
    product = replace(known.products[bought], price=episode["bought"]["price"])
    priced = [*known.products[:bought], product, *known.products[bought + 1 :]]
    return Shop(Catalogue(priced), places.__getitem__)


def recorded_goal(episode: Episode) -> Goal:
    """Our goal of the recorded number, with the price limit that was drawn."""
    told = episode["goal"]
    ours = with_limit(goals()[episode["goal_index"]], told["price_upper"])
    assert (ours.asin, ours.instruction, ours.name) == (told["asin"], told["instruction_text"], told["name"])
    assert (ours.query, ours.product_category) == (told["query"], told["product_category"])
    assert list(ours.attributes) == told["attributes"]
    assert dict(ours.options) == told["goal_options"]
    return ours


def replayed(episode: Episode) -> Iterator[tuple[dict[str, Any], str, float, bool, dict[str, Any], WebShopEnv]]:
    shop = recorded_shop(episode)
    market = Recorded(Customer(shop, recorded_goal(episode)))
    env = WebShopEnv(**{**AS_ORIGINAL, "nouns": "alphabetic"}, market=market)
    first, _ = env.reset(seed=0)
    opening = {"observation": episode["first_observation"], "available": episode["first_available"]}
    yield opening, first, 0.0, False, {"detail": {}}, env
    for step in episode["steps"]:
        observation, reward, terminated, truncated, info = env.step(step["action"])
        assert not truncated
        yield step, observation, reward, terminated, info, env


@pytest.mark.parametrize("number", range(EPISODES))
def test_an_episode_goes_as_recorded(number: int) -> None:
    episode = episodes()[number]
    for step, observation, reward, done, info, env in replayed(episode):
        page = env.state.page
        if step["observation"] is not None:  # the page after buying was not recorded
            assert observation == step["observation"]
        if "available" in step:
            shop = env.customer.shop
            assert {"has_search_bar": has_search_bar(page), "clickables": list(clickables(shop, page))} == step[
                "available"
            ]
        assert reward == step.get("reward", 0.0)
        assert done == step.get("done", False)
        if done:
            bought = episode["bought"]
            assert shop_asin(env) == bought["asin"]
            assert dict(page.options) == bought["options"]
            parts = {name: part for name, part in info["detail"].items() if part is not None}
            assert parts.pop("reward") == bought["reward"]
            assert parts == bought["detail"]


def shop_asin(env: WebShopEnv) -> str:
    page = env.state.page
    assert page.place is not None
    return env.customer.shop.product(page.place).asin


def test_the_record_is_whole() -> None:
    steps = [step for episode in episodes() for step in episode["steps"]]
    assert len(episodes()) == EPISODES
    assert len(steps) == 1002
    assert sum("bought" in episode for episode in episodes()) == 106
    assert sum("ranking" in step for step in steps) > 150
    unsaid = [step for step in steps if step["action"] in ("look around", "click[]", "click[no such thing]")]
    assert unsaid  # actions that do nothing are among them

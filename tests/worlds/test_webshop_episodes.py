"""Replays episodes recorded in the original WebShop: every page, clickable and reward, and all parts of each reward.

What cannot be the same comes from the record: rankings (another search was used), price limits, and the prices of
products with a price range (the original draws both unseeded). Its noun tagger called every word of letters a noun.
"""

import gzip
import json
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.webshop_fakes import SingleTask
from tsr_lightning.worlds.webshop.catalogue import Catalogue
from tsr_lightning.worlds.webshop.env import AS_ORIGINAL, WebShopEnv
from tsr_lightning.worlds.webshop.goals import Goals, with_limit
from tsr_lightning.worlds.webshop.pages import clickables, has_search_bar, product_on
from tsr_lightning.worlds.webshop.product import Goal
from tsr_lightning.worlds.webshop.reading import read_catalogue
from tsr_lightning.worlds.webshop.shop import Shop

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


@cache
def places() -> dict[str, int]:
    """The place of each product by its asin."""
    return {product.asin: place for place, product in enumerate(catalogue().products)}


def recorded_shop(episode: Episode) -> Shop:
    """Our products with the recorded price of the bought one, and the recorded rankings."""
    products = catalogue().products
    rankings = {
        step["action"].removeprefix("search[")[:-1].lower(): step["ranking"]
        for step in episode["steps"]
        if "ranking" in step
    }
    found = {query: [places()[asin] for asin in ranking] for query, ranking in rankings.items()}
    if "bought" not in episode:
        return Shop(catalogue(), found.__getitem__)
    bought = places()[episode["bought"]["asin"]]
    product = replace(products[bought], price=episode["bought"]["price"])
    return Shop(Catalogue([*products[:bought], product, *products[bought + 1 :]]), found.__getitem__)


def recorded_goal(episode: Episode) -> Goal:
    """Our goal of the recorded number, with the recorded price limit."""
    recorded = episode["goal"]
    ours = with_limit(goals()[episode["goal_index"]], recorded["price_upper"])
    assert (ours.asin, ours.instruction, ours.name) == (
        recorded["asin"],
        recorded["instruction_text"],
        recorded["name"],
    )
    assert (ours.query, ours.product_category) == (recorded["query"], recorded["product_category"])
    assert list(ours.attributes) == recorded["attributes"]
    assert dict(ours.options) == recorded["goal_options"]
    return ours


def replayed(episode: Episode) -> Iterator[tuple[dict[str, Any], str, float, bool, dict[str, Any], WebShopEnv]]:
    tasks = SingleTask(recorded_shop(episode), recorded_goal(episode))
    env = WebShopEnv(**{**AS_ORIGINAL, "nouns": "alphabetic"}, tasks=tasks)
    first, _ = env.reset(seed=0)
    start = {"observation": episode["first_observation"], "available": episode["first_available"]}
    yield start, first, 0.0, False, {"detail": {}}, env
    for step in episode["steps"]:
        observation, reward, terminated, truncated, info = env.step(step["action"])
        assert not truncated
        yield step, observation, reward, terminated, info, env


@pytest.mark.parametrize("number", range(EPISODES))
def test_an_episode_replays_as_recorded(number: int) -> None:
    episode = episodes()[number]
    for step, observation, reward, done, info, env in replayed(episode):
        page = env.state.page
        if step["observation"] is not None:  # the page after buying was not recorded
            assert observation == step["observation"]
        if "available" in step:
            ours = {"has_search_bar": has_search_bar(page), "clickables": list(clickables(env.task.shop, page))}
            assert ours == step["available"]
        assert reward == step.get("reward", 0.0)
        assert done == step.get("done", False)
        if done:
            bought = episode["bought"]
            assert product_on(env.task.shop, page).asin == bought["asin"]
            assert dict(page.options) == bought["options"]
            parts = {name: part for name, part in info["detail"].items() if part is not None}
            assert parts.pop("reward") == bought["reward"]
            assert parts == bought["detail"]


def test_the_record_is_complete() -> None:
    steps = [step for episode in episodes() for step in episode["steps"]]
    assert len(episodes()) == EPISODES
    assert len(steps) == 1002
    assert sum("bought" in episode for episode in episodes()) == 106
    assert sum("ranking" in step for step in steps) > 150
    assert any(step["action"] in ("look around", "click[]", "click[no such thing]") for step in steps)  # invalid ones

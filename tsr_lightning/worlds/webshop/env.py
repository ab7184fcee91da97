"""WebShop as a text environment that search can branch. Budget, reward and prompt are RAGEN's, and so the paper's.

Departs from the original (github.com/princeton-nlp/WebShop) in what its arguments control (`AS_ORIGINAL` restores
that), and in this:

- prices of products with a range and price limits of goals are drawn by key, the same in every process; the original
  draws them from an unseeded generator. To use recorded ones, give `tasks` of `dataclasses.replace(product,
  price=...)` and `goals.with_limit`;
- an episode ends with a purchase; in the original one can go on searching, and `pages.act` still allows it;
- what raises in the original does not: see `shop.listing`, and goals without attributes;
- control characters in product text become blanks (see `cleaning.py`), and asins may have lower-case letters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar, Literal, NamedTuple, Unpack, get_args

from tsr_lightning.envs.reading import Answer
from tsr_lightning.envs.text import PromptStyle, format_answer
from tsr_lightning.envs.text_env import TextEnv, TextEnvOptions
from tsr_lightning.envs.turns import Draws, TurnResult
from tsr_lightning.envs.validate import noise_has_key, one_of, single_action
from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop.factory import GoalOrderName, GoalSourceName, SplitName, open_tasks
from tsr_lightning.worlds.webshop.nouns import TAGGERS, NounTaggerName, tagger
from tsr_lightning.worlds.webshop.oracle import next_action
from tsr_lightning.worlds.webshop.pages import DONE, Page, act, product_on
from tsr_lightning.worlds.webshop.prompts import (
    SHOP_PROMPT_STYLES,
    ObservationName,
    instructions,
    legal_actions,
    parse_action,
    show,
)
from tsr_lightning.worlds.webshop.reward import RewardDetail, purchase_reward
from tsr_lightning.worlds.webshop.score import page_score
from tsr_lightning.worlds.webshop.tasks import ShoppingTask, ShoppingTasks

RewardName = Literal["raw", "binary"]

# `env_kwargs` of the original environment: its text, its reward, and a budget that is never used up
AS_ORIGINAL: Mapping[str, Any] = {
    "observation": "text",
    "prompt_style": "original",
    "reward": "raw",
    "format_penalty": 0.0,
    "max_turns": 1_000_000,
    "nouns": "spacy",
}

_REWARDS: dict[str, Callable[[float], float]] = {"raw": lambda raw: raw, "binary": lambda raw: float(raw >= 1)}


class WebShopState(NamedTuple):
    """A goal in a shop, and the page."""

    shop: int  # the number of the shop
    goal: int  # the number of the goal
    page: Page


class WebShopEnv(TextEnv[WebShopState]):
    """Search a shop, open a product, choose its options and buy it; one action a turn, until something is bought.

    Args:
        data: the folder of the published files, or the path of their items_shuffle*.json (.gz too), with the others
            beside it. None: generated shops.
        products: reads only the first so many published products; None for all.
        goals: published goals made from products and their options ("synthetic"), or written by people ("human").
        split: of the published goals: "train", "validation", "test" or "all".
        goal_order: the order in which the goals are split, "ragen" or "original"; with "original" and all goals, a
            seed is the number of its goal.
        difficulty: of generated shops, by the names of `product_generator.Difficulty`; or a list, one for each shop.
        catalogue_seed: of generated shops.
        shops: the number of generated shops; None gives every instance a shop of its own.
        reward: "binary" is 1 for a purchase that matches the goal in everything and 0 for any other, "raw" is the
            original's partial reward.
        observation: the page as the original's text mode shows it ("text"), with its actions as RAGEN lists them
            ("actions"), or in few tokens and with the chosen options marked ("compact").
        nouns: finds the nouns by which titles are compared: "rule", "spacy" (the original's; needs spaCy and its
            model), "auto" (spaCy where it is installed) or "alphabetic" (every word).
        shows_attributes: whether products have a page of attributes (the original's `show_attrs`).
        tasks: your own shops and goals; `data` to `shops` and `shows_attributes` then have no effect.
        options: of `TextEnv`, by default the paper's nine turns and its prompt. With the `prompt_style` "original" a
            turn is the page alone, and the whole response is the action. An action that is not on the page costs no
            `format_penalty`, only its turn, as in the original.
    """

    prompt_styles: ClassVar[Mapping[str, PromptStyle]] = SHOP_PROMPT_STYLES
    asked = "Answer with one action, such as: search[red cotton shirt] or click[buy now]"

    def __init__(
        self,
        data: str | Path | None = None,
        products: int | None = None,
        goals: GoalSourceName = "synthetic",
        split: SplitName = "train",
        goal_order: GoalOrderName = "ragen",
        difficulty: Mapping[str, int] | Sequence[Mapping[str, int]] | None = None,
        catalogue_seed: int = 0,
        shops: int | None = None,
        reward: RewardName = "binary",
        observation: ObservationName = "actions",
        nouns: NounTaggerName = "rule",
        shows_attributes: bool = False,
        tasks: ShoppingTasks | None = None,
        **options: Unpack[TextEnvOptions],
    ) -> None:
        super().__init__(**(TextEnvOptions(max_turns=9, prompt_style="paper") | options))
        single_action("WebShopEnv.actions_per_turn", self.actions_per_turn)
        one_of("WebShopEnv.reward", reward, get_args(RewardName))
        one_of("WebShopEnv.observation", observation, get_args(ObservationName))
        one_of("WebShopEnv.nouns", nouns, TAGGERS)
        self._tasks = tasks or open_tasks(
            data=data,
            products=products,
            goals=goals,
            split=split,
            goal_order=goal_order,
            difficulty=difficulty,
            catalogue_seed=catalogue_seed,
            shops=shops,
            shows_attributes=shows_attributes,
        )
        self._cached_task = lru_cache(maxsize=256)(self._tasks.task)
        self._nouns = tagger(nouns)
        self._paid = _REWARDS[reward]
        self._observed: ObservationName = observation
        self.instructions = instructions(self.prompt_style, self.max_actions)

    @property
    def task(self) -> ShoppingTask:
        """The current shop and goal, with the goal's hidden parts."""
        return self._task(self.state)

    def initial_state(self, seed: int) -> WebShopState:
        """The first page, with the goal that `seed` names."""
        return WebShopState(*self._tasks.numbers(seed), Page())

    def noise_key(self, seed: int) -> Key:
        return Key(0).fold_in("webshop", "noise", seed)

    def read(self, response: str, limit: int) -> Answer:
        action, problem = parse_action(response, self.prompt_style)
        return Answer((action,), problem)

    def play(self, state: WebShopState, actions: tuple[str, ...], noise: Draws) -> TurnResult[WebShopState]:
        (action,) = actions
        # the sample that a random listing (`<r>`) shows; nothing else is random
        draw = (noise.key.value + self.episode.turns) % (1 << 64)
        page = act(self._task(state).shop, state.page, action, draw=draw)
        if page is None:  # as in the original, this costs nothing but its turn
            return TurnResult(state, effective=False, problem=f"{action[:40]!a} is not on this page")
        if page.draw:
            noise.uniform()  # so that it counts as chance
        after, effective = state._replace(page=page), page != state.page
        if page.kind != DONE:
            return TurnResult(after, effective=effective)
        raw = self._purchase(after).reward
        return TurnResult(after, self._paid(raw), effective=effective, success=raw >= 1, terminated=True)

    def show(self, state: WebShopState) -> str:
        shop, goal = self._task(state)
        raw = self._purchase(state).reward if state.page.kind == DONE else 0.0
        return show(shop, state.page, goal.instruction, raw, self._observed)

    def extra_info(self, state: WebShopState) -> dict[str, Any]:
        """The purchase and its score, the second measure of success beside `success`."""
        purchase = self._purchase(state) if state.page.kind == DONE else None
        return {
            "score": purchase.reward if purchase else 0.0,
            "bought": purchase is not None,
            "detail": asdict(purchase) if purchase else {},
        }

    def score(self) -> float:
        """The best reward within reach, a little less for every click to it (see score.py); after buying, the reward.

        Until something is bought, partial matches count even if the reward is binary.
        """
        state = self.state
        if state.page.kind == DONE:
            return self._paid(self._purchase(state).reward)
        shop, goal = self._task(state)
        return page_score(shop, state.page, goal, self._nouns, self.remaining())

    def state_key(self) -> tuple[int, str, str, Page]:
        """The shop's number, the goal, and the page with all that the shop keeps of the episode."""
        state = self.state
        goal = self._task(state).goal
        return state.shop, goal.asin, goal.instruction, state.page

    def legal_actions(self) -> list[str]:
        """Responses that click what is on the page, or search with words of the instruction; none at the end."""
        if self.has_ended():
            return []
        return [format_answer(self.prompt_style, [action]) for action in self._legal(self.state.page)]

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """A response that plays the next turn of a shortest path to the best reward (see oracle.py).

        The action is, with probability `noise`, a random legal one, drawn from `key`.
        """
        noise_has_key(noise, key)
        page = self.state.page
        if noise and key is not None and key.uniform(0) < noise:
            legal = self._legal(page)
            action = legal[int(key.uniform(1) * len(legal))]
        else:
            shop, goal = self.task
            action = next_action(shop, goal, page, self._nouns, self.remaining())
        return format_answer(self.prompt_style, [action])

    def _task(self, state: WebShopState) -> ShoppingTask:
        return self._cached_task(state.shop, state.goal)

    def _legal(self, page: Page) -> tuple[str, ...]:
        shop, goal = self.task
        return legal_actions(shop, page, goal.instruction)

    def _purchase(self, state: WebShopState) -> RewardDetail:
        """The reward of the purchase that ended the episode."""
        shop, goal = self._task(state)
        chosen = [value for _, value in state.page.options]
        return purchase_reward(product_on(shop, state.page), goal, chosen, self._nouns)

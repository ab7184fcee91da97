"""WebShop as a text environment that search can branch. Budget, reward and prompt are RAGEN's, and so the paper's.

Departs from the original (github.com/princeton-nlp/WebShop) where its arguments say so, which `AS_ORIGINAL` undoes, and

- prices of articles with a range and limits of goals are drawn by key, the same in every process; there they come from
  a generator that nobody seeded. Recorded ones can be put in: `dataclasses.replace(product, price=...)`,
  `goals.with_limit`, and `tasks` of those;
- an episode ends with a purchase; there one can search on, and `pages.act` still lets one;
- what makes the original fail does not fail: see `shop.listing`, and goals without attributes;
- control characters in product text are blanks (see `cleaning.py`), and asins may have lower-case letters.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import gymnasium
from gymnasium import spaces
from gymnasium.error import ResetNeeded

from tsr_lightning.envs.text import CHARSET, say_answer, say_turn
from tsr_lightning.envs.validate import one_of, whole
from tsr_lightning.envs.webshop.factory import GoalOrderName, GoalSourceName, SplitName, open_tasks
from tsr_lightning.envs.webshop.nouns import TAGGERS, NounTaggerName, tagger
from tsr_lightning.envs.webshop.oracle import next_action
from tsr_lightning.envs.webshop.pages import DONE, Page, act, product_on
from tsr_lightning.envs.webshop.prompts import (
    SHOP_PROMPT_STYLES,
    ObservationName,
    ShopPromptStyleName,
    instructions,
    legal_actions,
    parse_action,
    show,
)
from tsr_lightning.envs.webshop.reward import RewardDetail, purchase_reward
from tsr_lightning.envs.webshop.score import page_score
from tsr_lightning.envs.webshop.tasks import ShoppingTask, ShoppingTasks
from tsr_lightning.errors import ConfigError
from tsr_lightning.rng import Key

RewardName = Literal["raw", "binary"]

# What `env_kwargs` must say for the original environment: its text, its reward, and no budget that anyone reaches
AS_ORIGINAL: Mapping[str, Any] = {
    "observation": "text",
    "prompt_style": "original",
    "reward": "raw",
    "format_penalty": 0.0,
    "max_turns": 1_000_000,
    "nouns": "spacy",
}

_LONGEST_PAGE = 1 << 20  # characters
_LONGEST_ACTION = 8192
_REWARDS: dict[str, Callable[[float], float]] = {"raw": lambda raw: raw, "binary": lambda raw: float(raw >= 1)}


class Moment(NamedTuple):
    """The whole state of an episode."""

    shop: int  # the number of the shop
    goal: int  # the number of the goal
    page: Page
    turns: int  # played
    reward: float | None  # of the last turn; None before the first
    problem: str  # what was wrong with the last response; "" if nothing was
    noise: int  # the key that random listings are drawn from


class AnyText(spaces.Text):
    """Text of any characters, for product text is other people's."""

    def contains(self, x: Any) -> bool:
        return isinstance(x, str) and len(x) <= self.max_length


class WebShopEnv(gymnasium.Env[str, str]):
    """Search a shop, open an article, choose its options and buy it; one action a turn, until something is bought.

    Args:
        data: the folder of the published files, or the path of their items_shuffle*.json (.gz too), beside which the
            others lie. None: the embedded catalogue.
        products: reads the first so many of the published products; None for all.
        goals: the published goals made from products and their options ("synthetic"), or written by people ("human").
        split: of the published goals: "train", "validation", "test" or "all".
        goal_order: the order in which the goals are split, "ragen" or "original"; with "original" and all goals, a seed
            is the number of its goal.
        difficulty: of the embedded catalogue, by the names of `product_generator.Difficulty`; or a list, of which each
            shop has one.
        catalogue_seed: another seed, another embedded catalogue.
        shops: of the embedded catalogue; None gives every instance a shop of its own.
        max_turns: turns before the episode is truncated; a turn plays one action, and an unreadable one uses it up.
        reward: "binary" is 1 for a purchase with all that is asked for and 0 for any other, "raw" is the share matched.
        observation: the page as the original's text mode shows it ("text"), with its actions as RAGEN lists them
            ("actions"), or in few tokens and with the chosen options marked ("compact").
        prompt_style: "paper" is RAGEN's prompt, "brief" says the same in few tokens, "bare" leaves the rules out too;
            "original" is the page alone, and the whole response is the action (see AS_ORIGINAL).
        format_penalty: reward of a turn whose response says no action. One that says an action which the page does
            not have does nothing and costs nothing but its turn, as in the original.
        nouns: finds the nouns by which titles are compared: "rule", "spacy" (the original's; needs spaCy and its
            model), "auto" (spaCy where it is installed) or "alphabetic" (every word).
        shows_attributes: whether articles have a page of attributes (the original's `show_attrs`).
        tasks: shops and goals of your own, for which the arguments from `data` to `shops` and the one before have no
            effect.
        render_mode: "ansi" for the page as text.
    """

    metadata = {"render_modes": ["ansi"], "render_fps": 4}  # noqa: RUF012, gymnasium's own form

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
        max_turns: int = 9,
        reward: RewardName = "binary",
        observation: ObservationName = "actions",
        prompt_style: ShopPromptStyleName = "paper",
        format_penalty: float = -0.1,
        nouns: NounTaggerName = "rule",
        shows_attributes: bool = False,
        tasks: ShoppingTasks | None = None,
        render_mode: Literal["ansi"] | None = None,
    ) -> None:
        whole("max_turns", max_turns)
        one_of("reward", reward, get_args(RewardName))
        one_of("observation", observation, get_args(ObservationName))
        one_of("prompt_style", prompt_style, tuple(SHOP_PROMPT_STYLES))
        one_of("nouns", nouns, TAGGERS)
        if render_mode is not None:
            one_of("render_mode", render_mode, ("ansi",))
        if not isinstance(format_penalty, int | float) or not format_penalty <= 0:
            raise ConfigError(f"format_penalty is {format_penalty!r}: it is a reward, so give 0 or less, such as -0.1.")
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
        self._nouns = tagger(nouns)
        self.render_mode = render_mode
        self._max_turns = max_turns
        self._paid = _REWARDS[reward]
        self._observation: ObservationName = observation
        self._prompt_style = SHOP_PROMPT_STYLES[prompt_style]
        self._format_penalty = float(format_penalty)
        self._instructions = instructions(self._prompt_style, max_turns)
        self.observation_space = AnyText(_LONGEST_PAGE, min_length=0, charset=CHARSET)
        self.action_space = spaces.Text(_LONGEST_ACTION, min_length=0, charset=CHARSET)
        self._task = lru_cache(maxsize=256)(self._tasks.task)
        self._now: Moment | None = None

    @property
    def instructions(self) -> str:
        """The rules, told once: the system message."""
        return self._instructions

    @property
    def task(self) -> ShoppingTask:
        """The shop, and the goal with its hidden parts."""
        return self._who(self._moment())

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[str, dict[str, Any]]:
        """The first page, with the goal that `seed` names."""
        super().reset(seed=seed)
        if seed is None:
            seed = int(self.np_random.integers(1 << 31))
        shop, goal = self._tasks.numbers(seed)
        noise = Key(0).fold_in("webshop", "noise", seed).value
        self._now = Moment(shop, goal, Page(), turns=0, reward=None, problem="", noise=noise)
        return self._say(self._now), self._info(valid=True, effective=False, bought=None)

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        """Plays a turn."""
        now = self._moment()
        if self._over(now):
            raise ResetNeeded("the episode is over; call reset before the next step")
        shop, _ = self._who(now)
        said, problem = parse_action(action, self._prompt_style)
        reward = self._format_penalty if problem else 0.0
        page = now.page
        if said:
            there = act(shop, page, said, draw=(now.noise + now.turns) % (1 << 64))
            if there is None:
                problem = f"{said[:40]!a} is not on this page"
            else:
                page = there
        bought = self._bought(now._replace(page=page)) if page.kind == DONE else None
        if bought:
            reward = self._paid(bought.reward)
        self._now = now._replace(page=page, turns=now.turns + 1, reward=reward, problem=problem)
        info = self._info(valid=not problem, effective=page != now.page, bought=bought)
        return self._say(self._now), reward, bought is not None, bought is None and self._over(self._now), info

    def render(self) -> str | None:
        """The page, in render mode `ansi`."""
        return None if self.render_mode is None else self._page(self._moment())

    def get_state(self) -> Moment:
        """The whole moment, immutable."""
        return self._moment()

    def set_state(self, state: Moment, /) -> None:
        """Back to a moment that `get_state` returned."""
        self._now = state

    def reseed(self, key: Key, /) -> None:
        """The sample that a random listing (`<r>`) will show; nothing else is random."""
        self._now = self._moment()._replace(noise=key.value)

    def score(self) -> float:
        """The best reward in reach, a little less for every click to it (see score.py); after buying, the reward.

        The share matched counts, with a binary reward too, until something is bought.
        """
        now = self._moment()
        if now.page.kind == DONE:
            return self._paid(self._bought(now).reward)
        shop, goal = self._who(now)
        return page_score(shop, now.page, goal, self._nouns, self.remaining())

    def state_key(self) -> tuple[int, str, str, Page]:
        """The shop's number, what is wanted, and the page with all that the shop remembers."""
        now = self._moment()
        goal = self._who(now).goal
        return now.shop, goal.asin, goal.instruction, now.page

    def remaining(self) -> int:
        """Turns left."""
        return self._max_turns - self._moment().turns

    def legal_actions(self) -> list[str]:
        """Responses that click what stands on the page, or search with words of the instruction; none at the end."""
        now = self._moment()
        if self._over(now):
            return []
        return [say_answer(self._prompt_style, [action]) for action in self._legal(now)]

    def oracle(self, noise: float = 0.0, key: Key | None = None) -> str:
        """A response that plays the next turn of a shortest way to the best reward (see oracle.py).

        The action is, with probability `noise`, a random legal one, drawn from `key`.
        """
        if noise and key is None:
            raise ConfigError(f"noise {noise}: needs a key to draw from.")
        now = self._moment()
        shop, goal = self._who(now)
        if noise and key is not None and key.uniform(0) < noise:
            legal = self._legal(now)
            action = legal[int(key.uniform(1) * len(legal))]
        else:
            action = next_action(shop, goal, now.page, self._nouns, self.remaining())
        return say_answer(self._prompt_style, [action])

    def _moment(self) -> Moment:
        if self._now is None:
            raise ResetNeeded("call reset before anything else")
        return self._now

    def _who(self, now: Moment) -> ShoppingTask:
        return self._task(now.shop, now.goal)

    def _over(self, now: Moment) -> bool:
        return now.page.kind == DONE or now.turns >= self._max_turns

    def _legal(self, now: Moment) -> tuple[str, ...]:
        shop, goal = self._who(now)
        return legal_actions(shop, now.page, goal.instruction)

    def _bought(self, now: Moment) -> RewardDetail:
        """The reward of the purchase that ended the episode."""
        shop, goal = self._who(now)
        chosen = [value for _, value in now.page.options]
        return purchase_reward(product_on(shop, now.page), goal, chosen, self._nouns)

    def _info(self, *, valid: bool, effective: bool, bought: RewardDetail | None) -> dict[str, Any]:
        """The two measures of success, score and success, and what the contract asks for."""
        score = bought.reward if bought else 0.0
        return {
            "success": score >= 1,
            "score": score,
            "bought": bought is not None,
            "detail": asdict(bought) if bought else {},
            "action_is_valid": valid,
            "action_is_effective": effective,
        }

    def _page(self, now: Moment) -> str:
        shop, goal = self._who(now)
        raw = self._bought(now).reward if now.page.kind == DONE else 0.0
        return show(shop, now.page, goal.instruction, raw, self._observation)

    def _say(self, now: Moment) -> str:
        return say_turn(
            self._prompt_style,
            turn=now.turns + 1,
            state=self._page(now),
            left=self._max_turns - now.turns,
            reward=now.reward,
            problem=now.problem,
        )

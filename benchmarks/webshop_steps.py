"""Time of a WebShop step, with fresh and with cached searches and pages: `python -m benchmarks.webshop_steps`.

Episodes are scripted first: a search with words of a title, then random clicks until a purchase. Only playing them is
timed, in processor time, the best of three. Each time they are played twice, with caches cleared before the first.
`--data` adds the published files.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tsr_lightning.rng import Key
from tsr_lightning.worlds.webshop import pages, prompts, render, reward, score, shop
from tsr_lightning.worlds.webshop.env import WebShopEnv
from tsr_lightning.worlds.webshop.search import Search
from tsr_lightning.worlds.webshop.shop import Shop
from tsr_lightning.worlds.webshop.tasks import ShoppingTask

# The original's own code on the published sample, measured elsewhere: a step with its list of clickables, without its
# Java search, which adds 3.5 ms per search.
ORIGINAL_MS = 10.6
EPISODES = 400
TURNS = 30
REPEATS = 3
_CACHED = (
    shop.listing,
    pages.clickables,
    render.strings,
    prompts.available_actions,
    prompts._clicks,
    prompts._compact,
    reward.match_product,
    score.most_matched_options,
)

Script = tuple[int, tuple[str, ...]]  # a seed, and the responses


class PreparedTasks:
    """An environment's tasks, made in advance so that their making is not timed.

    Args:
        env: whose tasks they are.
        seeds: of the episodes.
    """

    def __init__(self, env: WebShopEnv, seeds: Sequence[int]) -> None:
        self._tasks: dict[int, ShoppingTask] = {}
        uncached: dict[Shop, Shop] = {}  # with searches that cache no answers
        for seed in seeds:
            env.reset(seed=seed)
            shop, goal = env.task
            if shop not in uncached:
                uncached[shop] = replace(shop, search=Search(shop.catalogue.products).find)
            self._tasks[seed] = ShoppingTask(uncached[shop], goal)

    def numbers(self, seed: int) -> tuple[int, int]:
        return 0, seed

    def task(self, shop: int, goal: int) -> ShoppingTask:
        return self._tasks[goal]


def scripted(env: WebShopEnv, seed: int) -> Script:
    """An episode that searches for three words of a title and then clicks at random."""
    key, responses = Key(seed), list[str]()
    env.reset(seed=seed)
    products = env.task.shop.catalogue.products
    for turn in range(TURNS):
        own_key = key.fold_in(turn)
        legal = env.legal_actions()
        response = legal[own_key.bits() % len(legal)]
        if env.state.page.kind == pages.INDEX:
            words = products[own_key.bits(1) % len(products)].title.split()
            start = own_key.bits(2) % max(1, len(words) - 2)
            response = f"<answer>search[{' '.join(words[start : start + 3]).translate({91: ' ', 93: ' '})}]</answer>"
        responses.append(response)
        if env.step(response)[2]:
            break
    return seed, tuple(responses)


def played(env: WebShopEnv, scripts: Sequence[Script], each: Callable[[WebShopEnv], object]) -> float:
    """Processor seconds of the steps, and of `each` after each of them."""
    spent = 0.0
    for seed, responses in scripts:
        env.reset(seed=seed)
        begun = time.process_time()
        for response in responses:
            env.step(response)
            each(env)
        spent += time.process_time() - begun
    return spent


def clear_caches() -> None:
    """Clears the caches of queries and pages."""
    for function in _CACHED:
        function.cache_clear()


MEASURED: dict[str, Callable[[WebShopEnv], object]] = {
    "step": lambda env: None,
    "step and clickables": lambda env: env.legal_actions(),
    "step and score": lambda env: env.score(),
}


def measured(name: str, **settings: Any) -> list[dict[str, Any]]:
    """Rows of the table: each of `MEASURED`, fresh and cached."""
    seeds = range(EPISODES)
    first = WebShopEnv(prompt_style="brief", max_turns=TURNS, **settings)
    env = WebShopEnv(prompt_style="brief", max_turns=TURNS, tasks=PreparedTasks(first, seeds), **_rendering(settings))
    scripts = [scripted(env, seed) for seed in seeds]
    steps = sum(len(responses) for _, responses in scripts)
    searches = sum("search[" in response for _, responses in scripts for response in responses)
    rows = []
    for what, each in MEASURED.items():
        seconds: dict[str, list[float]] = {"fresh": [], "cached": []}
        for _ in range(REPEATS):
            clear_caches()
            for spent in seconds.values():
                spent.append(played(env, scripts, each))
        for state, spent in seconds.items():
            microseconds = 1e6 * min(spent) / steps
            rows.append(
                {
                    "catalogue": name,
                    "measured": what,
                    "pages": state,
                    "steps": steps,
                    "searches": searches,
                    "microseconds": round(microseconds, 1),
                    "steps_per_second": round(1e6 / microseconds),
                    "times_the_original": round(1e3 * ORIGINAL_MS / microseconds),
                }
            )
    return rows


def _rendering(settings: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key == "observation"}


def table(rows: Sequence[dict[str, Any]]) -> str:
    heads = ("catalogue", "measured", "pages", "µs a step", "steps a second", "times the original's")
    keys = ("catalogue", "measured", "pages", "microseconds", "steps_per_second", "times_the_original")
    lines = [
        heads,
        ("---",) * len(heads),
        *[tuple(f"{row[key]:,}" if isinstance(row[key], int) else str(row[key]) for key in keys) for row in rows],
    ]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.webshop_steps", description=__doc__)
    parser.add_argument("--data", type=Path, help="folder of the published files")
    parser.add_argument("--out", type=Path, default=Path("runs/webshop_steps.json"), help="file of the figures")
    args = parser.parse_args()
    rows = measured("embedded", observation="actions") + measured("embedded, compact", observation="compact")
    if args.data is not None:
        rows += measured("published", data=args.data, split="all", observation="actions")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    figures = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "original_ms": ORIGINAL_MS,
        "rows": rows,
    }
    args.out.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    print(f"\nThe original: {ORIGINAL_MS} ms a step with its clickables, {1e3 / ORIGINAL_MS:.0f} steps a second.")


if __name__ == "__main__":
    main()

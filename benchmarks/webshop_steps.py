"""What a step of WebShop takes, with searches seen before and with fresh ones: `python -m benchmarks.webshop_steps`.

Episodes are written down first: searches with words of titles, then clicks at random until something is bought. Then
only playing them is timed, in seconds of the processor, the best of three times. The first time every search and page
is new, the second time none is; what is remembered is thrown away before each first time. `--data` adds the published
files.
"""

import argparse
import json
import platform
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tsr_lightning.envs.webshop import pages, reward, shop
from tsr_lightning.envs.webshop import prompts as speech
from tsr_lightning.envs.webshop import render as view
from tsr_lightning.envs.webshop import score as prospects
from tsr_lightning.envs.webshop.env import WebShopEnv
from tsr_lightning.envs.webshop.search import Search
from tsr_lightning.envs.webshop.shop import Shop
from tsr_lightning.envs.webshop.tasks import Customer
from tsr_lightning.rng import Key

# The original's own code on the published thousand, measured apart and not by this file: a step with its list of
# clickables, without its Java search, which adds 3.5 ms a search.
ORIGINAL_MS = 10.6
EPISODES = 400
TURNS = 30
REPEATS = 3
_REMEMBERED = (
    shop.listing,
    pages.clickables,
    view.strings,
    speech.available,
    speech._clicks,
    speech._compact,
    reward.appraise,
    prospects.most_matched,
)

Script = tuple[int, tuple[str, ...]]  # a seed, and the responses


class OneCustomer:
    """The market of an environment, with its customers made beforehand: resets and steps are timed, not their making.

    Args:
        env: whose market it is.
        seeds: of the episodes.
    """

    def __init__(self, env: WebShopEnv, seeds: Sequence[int]) -> None:
        self._customers: dict[int, Customer] = {}
        shops: dict[Shop, Shop] = {}  # with searches that remember no answers
        for seed in seeds:
            env.reset(seed=seed)
            there, goal = env.customer
            if there not in shops:
                shops[there] = replace(there, search=Search(there.catalogue.products)._find)
            self._customers[seed] = Customer(shops[there], goal)

    def numbers(self, seed: int) -> tuple[int, int]:
        return 0, seed

    def customer(self, shop: int, goal: int) -> Customer:
        return self._customers[goal]


def written(env: WebShopEnv, seed: int) -> Script:
    """An episode of a shopper who searches for three words of a title and then clicks at random."""
    key, said = Key(seed), list[str]()
    env.reset(seed=seed)
    products = env.customer.shop.catalogue.products
    for turn in range(TURNS):
        mine = key.fold_in(turn)
        legal = env.legal_actions()
        response = legal[mine.bits() % len(legal)]
        if env.state.page.kind == pages.INDEX:
            words = products[mine.bits(1) % len(products)].title.split()
            start = mine.bits(2) % max(1, len(words) - 2)
            response = f"<answer>search[{' '.join(words[start : start + 3]).translate({91: ' ', 93: ' '})}]</answer>"
        said.append(response)
        if env.step(response)[2]:
            break
    return seed, tuple(said)


def played(env: WebShopEnv, scripts: Sequence[Script], each: Callable[[WebShopEnv], object]) -> float:
    """Seconds of the processor that the steps take, and what is asked for after each of them."""
    spent = 0.0
    for seed, responses in scripts:
        env.reset(seed=seed)
        begun = time.process_time()
        for response in responses:
            env.step(response)
            each(env)
        spent += time.process_time() - begun
    return spent


def forget() -> None:
    """Throws away what is remembered of queries and pages."""
    for function in _REMEMBERED:
        function.cache_clear()


ASKED: dict[str, Callable[[WebShopEnv], object]] = {
    "step": lambda env: None,
    "step and clickables": lambda env: env.legal_actions(),
    "step and score": lambda env: env.score(),
}


def measured(name: str, **settings: Any) -> list[dict[str, Any]]:
    """Rows of the table: what is asked for, fresh and seen before."""
    seeds = range(EPISODES)
    first = WebShopEnv(prompt_style="brief", max_turns=TURNS, **settings)
    env = WebShopEnv(prompt_style="brief", max_turns=TURNS, market=OneCustomer(first, seeds), **_rendering(settings))
    scripts = [written(env, seed) for seed in seeds]
    steps = sum(len(responses) for _, responses in scripts)
    searches = sum("search[" in response for _, responses in scripts for response in responses)
    rows = []
    for asked, each in ASKED.items():
        seconds: dict[str, list[float]] = {"fresh": [], "seen before": []}
        for _ in range(REPEATS):
            forget()
            for spent in seconds.values():
                spent.append(played(env, scripts, each))
        for what, spent in seconds.items():
            microseconds = 1e6 * min(spent) / steps  # the least disturbed
            rows.append(
                {
                    "catalogue": name,
                    "asked": asked,
                    "pages": what,
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
    heads = ("catalogue", "asked for", "pages", "µs a step", "steps a second", "times the original's")
    keys = ("catalogue", "asked", "pages", "microseconds", "steps_per_second", "times_the_original")
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
        rows += measured("published", data=args.data, part="all", observation="actions")
    args.out.parent.mkdir(parents=True, exist_ok=True)
    told = {
        "python": platform.python_version(),
        "machine": platform.machine(),
        "original_ms": ORIGINAL_MS,
        "rows": rows,
    }
    args.out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
    print(table(rows))
    print(f"\nThe original: {ORIGINAL_MS} ms a step with its clickables, {1e3 / ORIGINAL_MS:.0f} steps a second.")


if __name__ == "__main__":
    main()

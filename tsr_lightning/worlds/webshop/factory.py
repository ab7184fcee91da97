"""Shopping tasks from an environment's arguments: the published files, or generated shops."""

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from tsr_lightning.envs.validate import one_of, whole
from tsr_lightning.errors import ConfigError, require
from tsr_lightning.worlds.webshop.generated_shops import GeneratedShops
from tsr_lightning.worlds.webshop.goals import GoalOrder, GoalSource, Split, goals_of, split_indices
from tsr_lightning.worlds.webshop.product_generator import Difficulty
from tsr_lightning.worlds.webshop.reading import read_catalogue
from tsr_lightning.worlds.webshop.search import search_over
from tsr_lightning.worlds.webshop.shop import Shop
from tsr_lightning.worlds.webshop.tasks import GeneratedTasks, ShoppingTasks, SingleShopTasks

GoalSourceName = Literal["synthetic", "human"]
SplitName = Literal["train", "validation", "test", "all"]
GoalOrderName = Literal["ragen", "original"]

_PRODUCTS, _ATTRIBUTES, _HUMAN = "items_shuffle", "items_ins_v2", "items_human_ins"


def open_tasks(
    *,
    data: str | Path | None,
    products: int | None,
    goals: GoalSourceName,
    split: SplitName,
    goal_order: GoalOrderName,
    difficulty: Mapping[str, int] | Sequence[Mapping[str, int]] | None,
    catalogue_seed: int,
    shops: int | None,
    shows_attributes: bool,
) -> ShoppingTasks:
    """The tasks that the arguments of `WebShopEnv` describe.

    Raises:
        ConfigError: one sentence with the key, the value and the remedy.
    """
    one_of("WebShopEnv.goals", goals, get_args(GoalSourceName))
    one_of("WebShopEnv.split", split, get_args(SplitName))
    one_of("WebShopEnv.goal_order", goal_order, get_args(GoalOrderName))
    if products is not None:
        whole("WebShopEnv.products", products)
    if data is None:
        generated = GeneratedShops(_difficulties(difficulty), catalogue_seed, shops)
        return GeneratedTasks(generated, search_over, shows_attributes)
    require(isinstance(data, str | Path), "WebShopEnv.data", data, "give the path of the published files, or null.")
    path, attributes, human = published_files(Path(data))
    require(
        goals != "human" or human is not None,
        "WebShopEnv.goals",
        goals,
        f"there is no {_HUMAN}*.json beside {path}; put it there, or take 'synthetic'.",
    )
    catalogue, report = read_catalogue(path, attributes, human, limit=products)
    if report.notes:
        logging.getLogger(__name__).warning("%s", report)
    all_goals = goals_of(catalogue, GoalSource(goals))
    shop = Shop(catalogue, search_over(catalogue), shows_attributes)
    return SingleShopTasks(shop, all_goals, split_indices(len(all_goals), Split(split), GoalOrder(goal_order)))


def published_files(data: Path) -> tuple[Path, Path | None, Path | None]:
    """The files of products, attributes and human instructions in a folder, or beside the file of products."""
    if data.is_dir():
        found = _named(data, _PRODUCTS)
        names = ", ".join(path.name for path in found) or "none"
        remedy = f"the folder has {len(found)} files {_PRODUCTS}*.json ({names}), so give the path of one."
        require(len(found) == 1, "WebShopEnv.data", str(data), remedy)
        data = found[0]
    require(data.exists(), "WebShopEnv.data", str(data), f"there is no such file; give the path of {_PRODUCTS}*.json.")
    return data, _beside(data, _ATTRIBUTES), _beside(data, _HUMAN)


def _named(folder: Path, stem: str) -> list[Path]:
    return sorted(path for end in (".json", ".json.gz") for path in folder.glob(f"{stem}*{end}"))


def _beside(products: Path, stem: str) -> Path | None:
    """The file of the same number of products, else the one without a number, else the only one of its name."""
    found = _named(products.parent, stem)
    for tail in (products.name.removeprefix(_PRODUCTS).split(".")[0], ""):
        for path in found:
            if path.name.split(".")[0] == stem + tail:
                return path
    return found[0] if len(found) == 1 else None


def _difficulties(given: Any) -> tuple[Difficulty, ...]:
    match given:
        case None:
            return (Difficulty(),)
        case Mapping():
            return (_difficulty(given),)
        case [_, *_] if all(isinstance(one, Mapping) for one in given):
            return tuple(map(_difficulty, given))
    remedy = "give a mapping such as {products: 40}, a list of one or more of them, or null."
    raise ConfigError(f"WebShopEnv.difficulty is {given!r}: {remedy}")


def _difficulty(given: Mapping[Any, Any]) -> Difficulty:
    known = [field.name for field in fields(Difficulty)]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}."
            raise ConfigError(f"WebShopEnv.difficulty has no {name!r}: {hint}")
    return Difficulty(**given)

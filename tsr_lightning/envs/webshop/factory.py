"""A market from an environment's arguments: the published files, or the embedded catalogue."""

import difflib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Literal, get_args

from tsr_lightning.envs.validate import one_of, whole
from tsr_lightning.envs.webshop.generated_shops import Mall
from tsr_lightning.envs.webshop.goals import Asked, Part, Split, goals_of, part_of
from tsr_lightning.envs.webshop.product_generator import Difficulty
from tsr_lightning.envs.webshop.reading import read_catalogue
from tsr_lightning.envs.webshop.search import search_over
from tsr_lightning.envs.webshop.shop import Shop
from tsr_lightning.envs.webshop.tasks import ManyShops, Market, OneShop
from tsr_lightning.errors import ConfigError

AskedName = Literal["synthetic", "human"]
PartName = Literal["train", "validation", "test", "all"]
SplitName = Literal["ragen", "original"]

_PRODUCTS, _ATTRIBUTES, _HUMAN = "items_shuffle", "items_ins_v2", "items_human_ins"


def opened(
    *,
    data: str | Path | None,
    products: int | None,
    asked: AskedName,
    part: PartName,
    split: SplitName,
    difficulty: Mapping[str, int] | Sequence[Mapping[str, int]] | None,
    catalogue_seed: int,
    shops: int | None,
    shows_attributes: bool,
) -> Market:
    """The customers that the arguments of `WebShopEnv` speak of.

    Raises:
        ConfigError: one sentence with the key, the value and the remedy.
    """
    one_of("asked", asked, get_args(AskedName))
    one_of("part", part, get_args(PartName))
    one_of("split", split, get_args(SplitName))
    if products is not None:
        whole("products", products)
    if data is None:
        mall = Mall(_difficulties(difficulty), catalogue_seed, shops)
        return ManyShops(mall, search_over, shows_attributes)
    path, attributes, human = published_files(Path(data))
    if asked == "human" and human is None:
        raise ConfigError(
            f"asked is 'human', and beside {path} is no {_HUMAN}*.json: put it there, or ask 'synthetic'."
        )
    catalogue, account = read_catalogue(path, attributes, human, most=products)
    if account.noted:
        logging.getLogger(__name__).warning("%s", account)
    goals = goals_of(catalogue, Asked(asked))
    shop = Shop(catalogue, search_over(catalogue), shows_attributes)
    return OneShop(shop, goals, part_of(len(goals), Part(part), Split(split)))


def published_files(data: Path) -> tuple[Path, Path | None, Path | None]:
    """The files of products, attributes and human instructions in a folder, or beside the first of them."""
    if data.is_dir():
        found = _named(data, _PRODUCTS)
        if len(found) != 1:
            names = ", ".join(path.name for path in found) or "none"
            raise ConfigError(
                f"data is {str(data)!r}, a folder with {len(found)} files {_PRODUCTS}*.json ({names}): name one file."
            )
        data = found[0]
    if not data.exists():
        raise ConfigError(f"data is {str(data)!r}, and there is nothing: give the path of {_PRODUCTS}*.json.")
    return data, _beside(data, _ATTRIBUTES), _beside(data, _HUMAN)


def _named(folder: Path, stem: str) -> list[Path]:
    return sorted(path for end in (".json", ".json.gz") for path in folder.glob(f"{stem}*{end}"))


def _beside(products: Path, stem: str) -> Path | None:
    """The file of the same number of products, else the only one of its name, else the one without a number."""
    found = _named(products.parent, stem)
    tails = [products.name.removeprefix(_PRODUCTS).split(".")[0], ""]
    for tail in tails:
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
        case [_, *_] as several if all(isinstance(one, Mapping) for one in several):
            return tuple(_difficulty(one) for one in several)
    raise ConfigError(
        f"difficulty is {given!r}: give a mapping such as {{products: 40}}, a list of one or more of them, or null."
    )


def _difficulty(given: Mapping[Any, Any]) -> Difficulty:
    known = [field.name for field in fields(Difficulty)]
    for name in given:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1) if isinstance(name, str) else []
            hint = f"did you mean {close[0]!r}?" if close else f"it takes {', '.join(known)}."
            raise ConfigError(f"difficulty has no {name!r}: {hint}")
    return Difficulty(**given)

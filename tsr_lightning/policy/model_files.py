"""Where a model's files are: in this package, in a folder, in the hub's local cache, or on the Hugging Face hub."""

import json
from functools import lru_cache
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from huggingface_hub import constants, try_to_load_from_cache
from huggingface_hub.errors import HFValidationError
from huggingface_hub.utils import validate_repo_id
from transformers import AutoConfig, PretrainedConfig
from transformers.utils import cached_file

from tsr_lightning.errors import ConfigError, require

_KEY = "model.policy.model"
_FOLDER = Path(__file__).parent / "embedded"
EMBEDDED = "embedded/"
NOWHERE = "neither a folder here nor a model in the cache or on the Hugging Face hub"
_SECONDS = 5  # for the hub to answer; its own client retries for half a minute


def location(model: str) -> str:
    """Returns what transformers loads a named model from: a folder, or its name on the hub."""
    if not model.startswith(EMBEDDED):
        return model
    folder = _FOLDER / model.removeprefix(EMBEDDED)
    names = ", ".join(sorted(f"{EMBEDDED}{path.parent.name}" for path in _FOLDER.glob("*/config.json")))
    require((folder / "config.json").is_file(), _KEY, model, f"not an embedded model, choose from {names or 'none'}")
    return str(folder)


def load_config(model: str) -> PretrainedConfig:
    """The configuration of a named model."""
    path = config_file(model)
    try:
        return AutoConfig.from_pretrained(path.parent)
    except (ValueError, KeyError, OSError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"{_KEY} is {model!r}: transformers cannot read its config.json ({reason})") from error


def config_file(model: str) -> Path:
    """The config.json of a named model, downloaded if it is only on the hub."""
    found = find_config(model)
    require(
        found is not None, _KEY, model, f"{NOWHERE}, so check the spelling, download it first, or use {EMBEDDED}sokoban"
    )
    return Path(str(found))


def find_config(model: str) -> Path | None:
    """As `config_file`; None where there is no such model."""
    local = local_config_file(model)
    if local is not None:
        return local
    found = _download(model, "config.json")
    return None if found is None else Path(found)


def local_config_file(model: str) -> Path | None:
    """The config.json of a named model that is on this machine; None where only the hub may have it."""
    folder = Path(location(model))
    if folder.is_dir():
        return folder / "config.json"
    cached = try_to_load_from_cache(model, "config.json") if _may_be_on_the_hub(model) else None
    return Path(cached) if isinstance(cached, str) else None


def published_ends(model: str) -> frozenset[int]:
    """The ids that end a response by a named model's generation_config.json; none where it has no such file."""
    name, folder = "generation_config.json", Path(location(model))
    path = folder / name if folder.is_dir() else _of_hub(model, name)
    if path is None or not path.is_file():
        return frozenset()
    try:
        ends = json.loads(path.read_text(encoding="utf-8")).get("eos_token_id")
    except (ValueError, AttributeError) as error:
        raise ConfigError(f"{_KEY} is {model!r}: its {name} is damaged, so write or copy it anew") from error
    return frozenset() if ends is None else frozenset(ends if isinstance(ends, list) else [ends])


def was_trained_here(model: str) -> bool:
    """True if a named model is an embedded policy, or a folder that `tsr export` has written."""
    card = Path(location(model)) / "README.md"
    return model.startswith(EMBEDDED) or (card.is_file() and "- tsr-lightning\n" in card.read_text(encoding="utf-8"))


def _may_be_on_the_hub(model: str) -> bool:
    """False for what can only be a folder, such as `./model`."""
    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return True


@lru_cache
def _of_hub(model: str, name: str) -> Path | None:
    """A file of a model on the hub, in its cache or downloaded; None where there is none. Asked for once a process."""
    cached = try_to_load_from_cache(model, name) if _may_be_on_the_hub(model) else None
    found = _download(model, name) if cached is None else cached
    return Path(found) if isinstance(found, str) else None  # the cache may know that there is none


def _download(model: str, name: str) -> str | None:
    try:
        return cached_file(model, name) if _may_be_on_the_hub(model) and _hub_is_reachable() else None
    except (OSError, ValueError):
        return None


def _hub_is_reachable() -> bool:
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        with urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=_SECONDS):
            return True
    except HTTPError:
        return True  # an error status is an answer
    except OSError:
        return False

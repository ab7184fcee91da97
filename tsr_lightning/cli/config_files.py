"""Reads what `--config` names: a file, a shipped one by its name, or YAML itself. Imports no PyTorch."""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from tsr_lightning.cli.shipped_configs import config_folder, config_path
from tsr_lightning.cli.suggestions import closest
from tsr_lightning.errors import ConfigError

ENV_KWARGS, CALLBACKS = "data.env_kwargs", "trainer.callbacks"  # which later files change key by key
_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_config(name: str) -> dict[str, Any]:
    """The keys of a configuration.

    Args:
        name: what was given as --config.

    Raises:
        ConfigError: there is no such file, or it holds no mapping of keys.
    """
    path = Path(name) if _exists(name) else config_path(name)
    if path is not None:
        loaded = _loaded(_text(path, name), name)
    elif name.endswith((".yaml", ".yml")) or not isinstance(loaded := _loaded(name, name), dict):
        raise ConfigError(_missing(name))
    if loaded is None:
        raise ConfigError(f"--config is {name}, which is empty: give it keys, such as data.instances, or leave it out")
    if not isinstance(loaded, dict):
        raise ConfigError(f"--config is {name}, which is no mapping of keys: write them as tsr fit --print_config does")
    return loaded


def named_classes(keys: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The dotted keys whose class a configuration names, without those within another such class."""
    for name, value in keys.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and key not in (ENV_KWARGS, CALLBACKS):
            yield from [key] if "class_path" in value else named_classes(value, f"{key}.")


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except OSError:  # YAML may be longer than the name of a file
        return False


def _text(path: Path, name: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"--config is {name}, which is no text: give a YAML file") from None
    except OSError as error:
        raise ConfigError(f"--config is {name}, which cannot be read ({error.strerror}): give a YAML file") from None


def _loaded(text: str, name: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        problem = re.sub(r'in "<[^>]*>", ', "at ", " ".join(str(error).split()))
        raise ConfigError(f"--config is {name}, which is no valid YAML: {problem}") from None


def _missing(name: str) -> str:
    plain = name.removeprefix("configs/")
    folder = config_folder()
    shipped = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*.yaml")) if folder else []
    by_stem = {PurePosixPath(path).stem: path for path in sorted(shipped, key=lambda path: -path.count("/"))}
    close = closest(plain, shipped) or by_stem.get(closest(PurePosixPath(plain).stem, by_stem) or "")
    remedy = f"did you mean {close}?" if close else "give a path, or the name of a shipped one such as sokoban.yaml"
    return f"--config is {name}, which is no file here and none that is shipped: {remedy}"

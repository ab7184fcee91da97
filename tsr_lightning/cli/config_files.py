"""Reads what `--config` names: a file, a shipped one by its name (of `configs/` beside the package in a checkout,
inside it in an installed wheel), or YAML itself. Imports no PyTorch.

`extends`, a list of files, lays those below the file's own keys, as if each were given before it with `--config`.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import reduce
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from tsr_lightning.cli.suggestions import closest
from tsr_lightning.errors import ConfigError
from tsr_lightning.unique_keys import KeyTwice, load_unique

CONFIG_FLAGS = ("--config", "-c")
ENV_KWARGS, CALLBACKS = "data.env_kwargs", "trainer.callbacks"  # which later files change key by key


def read_config(name: str) -> dict[str, Any]:
    """The keys of a configuration, over those of the files that it extends.

    Args:
        name: what was given as --config.

    Raises:
        ConfigError: there is no such file, or it holds no mapping of keys.
    """
    return reduce(merged, read_layers(name))


def names_config(flags: Iterable[str]) -> bool:
    """True if some flag is a --config."""
    return any(flag.partition("=")[0] in CONFIG_FLAGS for flag in flags)


def extends(name: str) -> bool:
    """True if a configuration has the key `extends`, which no parser knows. Arguments as of `read_config`."""
    return "extends" in _own_keys(name)


def read_layers(name: str, extending: Sequence[str] = ()) -> list[dict[str, Any]]:
    """The keys of the files that a configuration extends, in the order in which they are laid, and then its own.

    Args:
        name: what was given as --config, or stands in `extends`.
        extending: the files that extend this one.

    Raises:
        ConfigError: as `read_config`, or a file extends itself.
    """
    keys = _own_keys(name)
    bases = keys.pop("extends", [])
    if not isinstance(bases, list) or not all(isinstance(base, str) for base in bases):
        raise ConfigError(f"extends is {bases!r} in {name}: give a list of files, as --config takes them")
    layers = []
    for base in (_base(name, given) for given in bases):
        if base in (*extending, name):
            raise ConfigError(f"--config {name} extends {base}, which extends it: name each file once")
        try:
            layers += read_layers(base, (*extending, name))
        except ConfigError as error:
            raise ConfigError(f"--config {name} extends {base}: {error}") from None
    return [*layers, keys]


def merged(before: Any, after: Any) -> Any:
    """Mappings key by key at every depth, the later over the earlier; null and other values replace what was there."""
    if not isinstance(after, Mapping):
        return after  # the parser refuses arguments that are no mapping
    known = before if isinstance(before, Mapping) else {}
    return {**known, **{key: merged(known.get(key), value) for key, value in after.items()}}


def named_classes(keys: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The dotted keys whose class a configuration names, without those within another such class."""
    for name, value in keys.items():
        key = f"{above}{name}"
        if isinstance(value, Mapping) and key not in (ENV_KWARGS, CALLBACKS):
            yield from [key] if "class_path" in value else named_classes(value, f"{key}.")


def _base(name: str, base: str) -> str:
    """The file that `name` extends: a shipped file extends shipped ones, whatever lies in the working folder."""
    folder, path = config_folder(), _path(name)
    is_shipped = folder is not None and path is not None and path.resolve().is_relative_to(folder.resolve())
    return str((is_shipped and config_path(base)) or base)


def _path(name: str) -> Path | None:
    return Path(name) if _exists(name) else config_path(name)


def _own_keys(name: str) -> dict[str, Any]:
    if (path := _path(name)) is not None:
        loaded = _loaded(_text(path, name), name)
    elif name.endswith((".yaml", ".yml")) or not isinstance(loaded := _loaded(name, name), dict):
        raise ConfigError(_missing(name))
    if loaded is None:
        raise ConfigError(f"--config is {name}, which is empty: give it keys, such as data.instances, or leave it out")
    if not isinstance(loaded, dict):
        raise ConfigError(f"--config is {name}, which is no mapping of keys: write them as tsr fit --print_config does")
    return loaded


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
        return load_unique(text)
    except KeyTwice as error:
        raise ConfigError(f"--config is {name}: {error}") from None
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


_PACKAGE = Path(__file__).resolve().parents[1]


def config_folder(package: Path = _PACKAGE) -> Path | None:
    """The folder of the shipped configurations, or None where there is none."""
    if (package / "configs").is_dir():
        return package / "configs"
    # Beside an installed package, a folder named `configs` could be anyone's: only a checkout has pyproject.toml there.
    if (package.parent / "pyproject.toml").is_file() and (package.parent / "configs").is_dir():
        return package.parent / "configs"
    return None


def config_path(name: str) -> Path | None:
    """The shipped YAML of this name: `configs/quickstart.yaml`, `quickstart.yaml` or `search/beam.yaml`, else None."""
    folder = config_folder()
    relative = PurePosixPath(name)
    if folder is None or relative.is_absolute() or ".." in relative.parts or relative.suffix not in {".yaml", ".yml"}:
        return None
    if relative.parts[0] == "configs":
        relative = relative.relative_to("configs")
    path = folder / relative
    return path if path.is_file() else None

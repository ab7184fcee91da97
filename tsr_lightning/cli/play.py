"""`tsr play ENV`: the flags that configure an environment by its id. Imports no PyTorch."""

from collections.abc import Sequence
from pathlib import Path

import yaml

from tsr_lightning.cli.config_files import config_folder, names_config
from tsr_lightning.errors import ConfigError

# A new model, with room for what a person may write in tokens of a small vocabulary
_NEW = (
    *("--model.policy.model", '{"max_position_embeddings": 8192}'),
    *("--data.sampling.max_response_tokens", "512"),
)


def configured(args: Sequence[str]) -> list[str]:
    """The flags of `tsr play`, with an id before them as the flags that it stands for: the shipped configuration of its
    task, or else its name and a new model, which lends the tokenizer.

    Raises:
        ConfigError: neither an id nor a configuration is given.
    """
    has_config = names_config(args)
    if args[:1] and not args[0].startswith("-") and not args[0].endswith((".yaml", ".yml")):
        env, flags = args[0], list(args[1:])
        if has_config:
            return [*flags, "--data.env", env]
        shipped = _shipped(env)
        own = [] if shipped else [*_NEW, "--data.env", env]
        return ["--config", str(shipped or "common/task.yaml"), *own, *flags]
    if not has_config and all(given.startswith("-") for given in args[:1]) and not {"--help", "-h"}.intersection(args):
        raise ConfigError("tsr play needs an environment: tsr play tsr/Sokoban-v0, or tsr play --config FILE")
    return list(args)


def _shipped(env: str) -> Path | None:
    """The shipped configuration of a task; None where there is none."""
    folder = config_folder()
    files = [] if folder is None else [*sorted(folder.glob("*.yaml")), *sorted(folder.glob("warm_start/*.yaml"))]
    return next((file for file in files if _env_of(file) == env), None)


def _env_of(file: Path) -> object:
    return yaml.safe_load(file.read_text(encoding="utf-8")).get("data", {}).get("env")

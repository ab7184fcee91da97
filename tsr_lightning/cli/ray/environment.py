"""Who says which rank a process is. Imports no Ray."""

from collections.abc import Mapping
from typing import Any

from lightning.pytorch.plugins.environments import ClusterEnvironment


def with_environment(trainer: Mapping[str, Any], environment: ClusterEnvironment) -> list[Any]:
    """`trainer.plugins` of a configuration, and a cluster environment: Lightning would choose one by itself."""
    plugins = trainer.get("plugins") or []
    return [*(plugins if isinstance(plugins, list) else [plugins]), environment]

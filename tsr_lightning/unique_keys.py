"""Reads YAML in which no mapping has a key twice, where YAML itself would silently keep the last."""

from collections.abc import Hashable
from typing import Any

import yaml

LOADER: Any = yaml.CSafeLoader if yaml.__with_libyaml__ else yaml.SafeLoader
_MERGE = "tag:yaml.org,2002:merge"  # <<


class KeyTwice(ValueError):
    """A mapping has a key twice; the message says which, and where."""


class _UniqueKeys(LOADER):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set[Hashable]()
        for key_node, _ in node.value:
            if key_node.tag == _MERGE:  # of keys that those here may replace
                continue
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable):  # others are refused below
                if key in seen:
                    raise KeyTwice(f"line {key_node.start_mark.line + 1} has {key} for a second time: keep one")
                seen.add(key)
        constructed: dict[Any, Any] = super().construct_mapping(node, deep)
        return constructed


def load_unique(text: str) -> Any:
    """Parses YAML.

    Raises:
        KeyTwice: a mapping has a key twice.
        yaml.YAMLError: it is no valid YAML.
    """
    return yaml.load(text, _UniqueKeys)

"""Recorded searches of a fake environment, and hand-made episodes. No tests in here."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.fakes import Guided, driver, tasks
from tsr_lightning.episodes.convert import to_episode
from tsr_lightning.episodes.files import write
from tsr_lightning.episodes.schema import ROLLOUT, SCHEMA, VERSION, Episode, Header, Node, Said
from tsr_lightning.search.retry import Retrying
from tsr_lightning.search.strategies import Strategy
from tsr_lightning.trajectory import Trajectory


def header(env: str = "tsr/Sokoban-v0", phase: str = ROLLOUT, epoch: int = 0, **envs: Any) -> Header:
    return Header(
        schema=SCHEMA,
        version=VERSION,
        phase=phase,
        epoch=epoch,
        envs=[{"env": env, "env_kwargs": envs, "name": env}],
        policy={"model": "embedded/sokoban", "response_prefix": "", "template_arguments": {}},
        context={"class_path": "tsr_lightning.policy.chat.SingleTurn", "init_args": {}},
        limits={"context": 1024, "episode": None, "model": 1024, "response": 12},
        temperature=1.0,
    )


def recorded(strategy: Strategy, count: int = 8, env: Any = None, retries: int = 0) -> list[Trajectory]:
    """The searches of a fake environment that were not lost."""
    runner = driver(env or Guided(), retry=Retrying(retries), record=True, keep_tree=True, keep_state_keys=True)
    return [one for one in runner.survivors(tasks(strategy, count)) if one is not None]


def written(path: Path, strategy: Strategy, count: int = 8) -> list[Episode]:
    """Writes a file of episodes, and returns them."""
    episodes = [to_episode(trajectory) for trajectory in recorded(strategy, count)]
    write(path, header(), episodes)
    return episodes


def node(place: int, parent: int | None, text: str, observation: str = "", **changed: Any) -> Node:
    """A response with made-up figures."""
    fields: dict[str, Any] = {
        **{"id": place, "parent": parent, "turn": 1 if parent is None else 2, "round": 0, "shared": 0},
        **{"prompt": [1, 2], "response": [3], "logprobs": [-0.5], "finished": True, "text": text},
        **{"observation": [Said("user", observation)], "reward": 0.0, "valid": True, "effective": True},
        **{"remaining": 3, "state": f"state {place}", "ended": None, "env_score": 0.5, "score": 0.5},
        **{"value": None, "advantage": None, "weight": None, "noise": 1, "drawn": True, "demonstrated": False},
        **{"fate": "kept", "why": ""},
    }
    return Node(**(fields | changed))


def episode(first: str, nodes: Sequence[Node], instance: int = 2**63 + 1, **changed: Any) -> Episode:
    """An episode that begins with a text."""
    fields: dict[str, Any] = {
        **{"instance": instance, "member": 0, "env": 0, "strategy": "Beam", "origin": "searched"},
        **{"ended": "succeeded", "episode_return": 1.0, "policy_epochs": 0, "tree": True},
        **{"observation": [Said("user", first)], "state": "first", "nodes": list(nodes)},
        **{"final_shared": 0, "final_prompt": []},
    }
    return Episode(**(fields | changed))

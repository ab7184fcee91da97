"""Trajectories as conversations, in TRL's format for supervised training."""

import json
from collections.abc import Iterable
from typing import Any

from tsr_lightning.episodes.convert import to_trajectory
from tsr_lightning.episodes.schema import Episode, Header
from tsr_lightning.trajectory import Trajectory


def to_record(trajectory: Trajectory) -> dict[str, Any]:
    """A line of such a file, but for the epoch. Tools are a column, as TRL's templates take them."""
    messages: list[dict[str, str]] = []
    offer: dict[str, Any] = {}
    for turn in trajectory.turns:
        for message in turn.messages:
            if message.role == "tools":
                offer = json.loads(message.content)
            else:
                messages.append({"role": message.role, "content": message.content})
        messages.append({"role": "assistant", "content": turn.text})
    return {
        "messages": messages,
        **offer,
        "env": trajectory.env,
        "instance": trajectory.instance,
        "strategy": trajectory.strategy,
        "return": trajectory.episode_return,
        "success": trajectory.succeeded,
    }


def conversations(header: Header, episodes: Iterable[Episode]) -> str:
    """Episodes as lines of conversations."""
    records = (to_record(to_trajectory(episode)) | {"epoch": header.epoch} for episode in episodes)
    return "".join(f"{json.dumps(record, ensure_ascii=False)}\n" for record in records)

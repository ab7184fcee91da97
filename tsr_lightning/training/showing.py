"""`tsr rollout`: episodes of a policy in a file. What it loads, `tsr play` plays with."""

from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from tsr_lightning.episodes.convert import to_episode
from tsr_lightning.episodes.files import write
from tsr_lightning.episodes.schema import ROLLOUT
from tsr_lightning.errors import require
from tsr_lightning.rollout.play import play_episodes
from tsr_lightning.rollout.saved import header_of
from tsr_lightning.training import checkpoints
from tsr_lightning.training import lightning_compat as compat
from tsr_lightning.training.agent import Agent
from tsr_lightning.training.datamodule import RolloutDataModule


def load(trainer: Trainer, agent: Agent, data: RolloutDataModule, path: Path | None, weights_only: bool | None) -> int:
    """Builds the policy of an agent, and returns the epochs that it was trained for.

    Args:
        trainer: that neither trains nor evaluates.
        agent: gets the weights.
        data: the environments.
        path: of the weights' checkpoint; None begins as training does.
        weights_only: as of `checkpoints.load`; None is true.
    """
    checkpoint = None if path is None else checkpoints.load(path, weights_only=weights_only is not False)
    compat.attach(trainer, agent, data)
    agent.configure_model()
    if checkpoint is None:
        return 0
    agent.on_load_checkpoint(checkpoint)
    agent.load_state_dict(checkpoint["state_dict"])
    return compat.Position.in_checkpoint(checkpoint).epochs


def check(data: RolloutDataModule, output: Path, count: int) -> None:
    """Refuses what `play` could not play or write. Arguments as of `play`.

    Raises:
        ConfigError: it names the key.
    """
    require(count >= 1, "episodes", count, "give 1 or more")
    require(not output.exists(), "output", str(output), "it exists already; give another file, or remove it first")
    remedy = "it plays nothing in its first epoch, so give another"
    require(any(entry.count for entry in data.plan.entries(0)), "data.plan", data.plan, remedy)


def play(data: RolloutDataModule, output: Path, count: int, epochs: int) -> None:
    """Plays episodes with the policy as it is now, and writes them.

    Args:
        data: whose plan says how, and whose held-out instances are played.
        output: the file, which is not there yet.
        count: episodes.
        epochs: that the policy had been trained for.
    """
    strategies = [entry.strategy for entry in data.plan.entries(0) for _ in range(entry.count)]
    instances, actor = data.instances.held_out, data.actor
    try:
        played = play_episodes(actor, instances, strategies, count, data.key)
        write(output, header_of(actor, ROLLOUT, epochs), map(to_episode, played))
    finally:
        data.close()
    rate = sum(each.succeeded for each in played) / max(1, len(played))
    lost = f", {count - len(played)} lost to failures of the environment" if len(played) < count else ""
    rank_zero_info(
        f"{len(played)} episodes{lost}, success {rate:.3f}, in {output} ({output.stat().st_size / 2**20:.1f} MiB): "
        f"tsr view {output} shows them"
    )

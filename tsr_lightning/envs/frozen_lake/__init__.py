"""FrozenLake in words: gymnasium's slippery ice, played by a language model."""

from tsr_lightning.envs.frozen_lake.env import TextFrozenLake

__all__ = ["TextFrozenLake"]

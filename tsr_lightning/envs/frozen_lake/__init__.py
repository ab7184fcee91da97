"""FrozenLake as text: gymnasium's slippery lake, maps, values, and the environment."""

from tsr_lightning.envs.frozen_lake.env import TextFrozenLake as TextFrozenLake

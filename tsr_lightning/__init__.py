"""Trains language-model agents with reinforcement learning on trajectories built by search.

Importing the package registers its environments with gymnasium, by name: `gymnasium.make("tsr/Sokoban-v0")`. It loads
neither them nor PyTorch.
"""

from tsr_lightning import envs as envs
from tsr_lightning import worlds as worlds

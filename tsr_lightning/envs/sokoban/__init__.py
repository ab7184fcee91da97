"""Sokoban: the mechanics, levels made and read, push distances, a solver, and the environment itself."""

from tsr_lightning.envs.sokoban.env import SokobanEnv as SokobanEnv

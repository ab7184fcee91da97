"""Sokoban: the board, generated levels and level files, push distances, a solver, and the environment."""

from tsr_lightning.envs.sokoban.env import SokobanEnv as SokobanEnv

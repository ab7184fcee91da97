"""The contract of environments that search can branch, and two tasks on grids, registered under gymnasium ids."""

from gymnasium import register

register("tsr/FrozenLake-v0", "tsr_lightning.envs.frozen_lake.env:TextFrozenLake")
register("tsr/Sokoban-v0", "tsr_lightning.envs.sokoban.env:SokobanEnv")

"""Text environments that search can branch, registered under gymnasium ids."""

from gymnasium import register

register("tsr/ALFWorld-v0", "tsr_lightning.envs.alfworld.env:ALFWorldEnv")
register("tsr/FrozenLake-v0", "tsr_lightning.envs.frozen_lake.env:TextFrozenLake")
register("tsr/Sokoban-v0", "tsr_lightning.envs.sokoban.env:SokobanEnv")
register("tsr/TextWorld-v0", "tsr_lightning.envs.textworld.env:TextWorldEnv")
register("tsr/WebShop-v0", "tsr_lightning.envs.webshop.env:WebShopEnv")

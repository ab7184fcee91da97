"""Text environments that search can branch, registered under gymnasium ids."""

from gymnasium import register, registry

register("tsr/FrozenLake-v0", "tsr_lightning.envs.frozen_lake:TextFrozenLake")
if "tsr/Sokoban-v0" not in registry:
    register("tsr/Sokoban-v0", "tsr_lightning.envs.sokoban.env:SokobanEnv")
if "tsr/WebShop-v0" not in registry:
    register("tsr/WebShop-v0", "tsr_lightning.envs.webshop.env:WebShopEnv")

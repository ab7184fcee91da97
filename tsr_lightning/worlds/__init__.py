"""Tasks with a world of their own, WebShop, ALFWorld, TextWorld and software tasks, registered under gymnasium ids."""

from gymnasium import register

register("tsr/ALFWorld-v0", "tsr_lightning.worlds.alfworld.env:ALFWorldEnv")
register("tsr/SWE-v0", "tsr_lightning.worlds.swe.env:SWEEnv")
register("tsr/TextWorld-v0", "tsr_lightning.worlds.textworld.env:TextWorldEnv")
register("tsr/WebShop-v0", "tsr_lightning.worlds.webshop.env:WebShopEnv")

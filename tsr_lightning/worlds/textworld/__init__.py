"""TextWorld as an environment that search can branch. Needs the extra `textworld`; see env.py."""

from tsr_lightning.worlds.textworld.package import check_installed

check_installed()  # before a module of this package imports textworld

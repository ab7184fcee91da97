"""The package `textworld`, which only this environment needs: looked for before anything imports it."""

from importlib.metadata import PackageNotFoundError, version

from tsr_lightning.errors import ConfigError

SUPPORTED = "1.7"  # states are made of what this version keeps; see world.py and interpreter.py
REMEDY = "install the extra: pip install 'tsr-lightning[textworld]' (it needs gcc)"


def check_installed(found: str | None = None) -> str:
    """The version of `textworld`, which must be a supported one.

    Args:
        found: what is installed; None asks the installation.

    Raises:
        ConfigError: if it is missing or of another version.
    """
    if found is None:
        try:
            found = version("textworld")
        except PackageNotFoundError:
            raise ConfigError(f"tsr/TextWorld-v0 needs the package textworld, which is missing: {REMEDY}.") from None
    if found != SUPPORTED and not found.startswith(f"{SUPPORTED}."):
        raise ConfigError(f"tsr/TextWorld-v0 needs textworld {SUPPORTED}, and {found} is installed: {REMEDY}.")
    return found

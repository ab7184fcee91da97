"""The configurations that come with the package, wherever it runs from.

A checkout keeps them in `configs/` beside the package; the wheel carries the same folder inside it.
"""

from pathlib import Path, PurePosixPath

_PACKAGE = Path(__file__).resolve().parents[1]


def config_folder(package: Path = _PACKAGE) -> Path | None:
    """The folder of the shipped configurations, or None where there is none."""
    if (package / "configs").is_dir():
        return package / "configs"
    # Beside an installed package, a folder named `configs` could be anyone's: only a checkout has pyproject.toml there.
    if (package.parent / "pyproject.toml").is_file() and (package.parent / "configs").is_dir():
        return package.parent / "configs"
    return None


def config_path(name: str) -> Path | None:
    """The shipped YAML of this name: `configs/quickstart.yaml`, `quickstart.yaml` or `search/beam.yaml`, else None."""
    folder = config_folder()
    asked = PurePosixPath(name)
    if folder is None or asked.is_absolute() or ".." in asked.parts or asked.suffix not in {".yaml", ".yml"}:
        return None
    if asked.parts[0] == "configs":
        asked = asked.relative_to("configs")
    path = folder / asked
    return path if path.is_file() else None

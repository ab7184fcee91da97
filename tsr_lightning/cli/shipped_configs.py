"""Finds the shipped configurations: `configs/` beside the package in a checkout, inside it in an installed wheel."""

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
    relative = PurePosixPath(name)
    if folder is None or relative.is_absolute() or ".." in relative.parts or relative.suffix not in {".yaml", ".yml"}:
        return None
    if relative.parts[0] == "configs":
        relative = relative.relative_to("configs")
    path = folder / relative
    return path if path.is_file() else None

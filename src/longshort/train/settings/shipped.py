"""The configurations that come with the package, by name, and how `longshort train` finds a configuration."""

from __future__ import annotations

from pathlib import Path

from longshort.model.presets import PRESETS
from longshort.train.settings.values import ConfigError

_FOLDER = Path(__file__).parents[2] / "configs"


def shipped_names() -> tuple[str, ...]:
    """The names of the configurations of the package.

    >>> shipped_names()
    ('gpt2-small', 'listops', 'modern-10m', 'paper-6m', 'recall', 'rl-tiny', 'tiny')
    """
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.yaml")))


def shipped_path(name: str) -> Path:
    """The file of a configuration of the package."""
    return _FOLDER / f"{name}.yaml"


def find_config(source: str | Path) -> Path:
    """The YAML file for a path, or for the name of a configuration of the package. An existing file comes first."""
    path = Path(source)
    if _is_there(path) and not (path.is_dir() and str(source) in shipped_names()):
        return path
    if str(source) in shipped_names():
        return shipped_path(str(source))
    if path.stem in shipped_names():
        raise ConfigError(f"{source}: no such file; for the configuration of the package, give its name: {path.stem}")
    if str(source) in PRESETS:
        raise ConfigError(
            f"{source}: is a size of models, not a configuration; give a configuration, and model.preset={source}"
        )
    names = ", ".join(shipped_names())
    raise ConfigError(f"{source}: no such file; give a YAML file, or a configuration of the package: {names}")


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # a name that is too long or contains NUL
        return False

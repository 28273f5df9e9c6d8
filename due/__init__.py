"""due: uncertainty from a deep network in one forward pass."""

from importlib import import_module, metadata
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from due.estimators import DUECATE, DUEClassifier, DUERegressor
    from due.lipschitz import constrain
    from due.methods import DUE
    from due.rows import Images, Table
    from due.storage.model import load, save
    from due.training import Recipe, fit

    __version__: str

_MODULES = {  # imported at the first use, so that `due --help` does not wait for torch
    "DUE": "due.methods",
    "DUECATE": "due.estimators",
    "DUEClassifier": "due.estimators",
    "DUERegressor": "due.estimators",
    "Images": "due.rows",
    "Recipe": "due.training",
    "Table": "due.rows",
    "constrain": "due.lipschitz",
    "fit": "due.training",
    "load": "due.storage.model",
    "save": "due.storage.model",
}
__all__ = [
    "DUE",
    "DUECATE",
    "DUEClassifier",
    "DUERegressor",
    "Images",
    "Recipe",
    "Table",
    "constrain",
    "fit",
    "load",
    "save",
]


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return metadata.version("due")
    if name not in _MODULES:
        raise AttributeError(f"module 'due' has no attribute {name!r}")
    return globals().setdefault(name, getattr(import_module(_MODULES[name]), name))


def __dir__() -> list[str]:
    return sorted([*globals(), "__version__", *_MODULES])

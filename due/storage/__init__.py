"""Saved models: a directory with `config.json` and safetensors, never pickle."""

from due.storage.atomic import StorageError, atomic_write
from due.storage.files import altered, load, save

__all__ = ["StorageError", "altered", "atomic_write", "load", "save"]

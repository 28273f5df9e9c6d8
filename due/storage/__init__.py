"""Saved models: a directory with `config.json` and safetensors, never pickle."""

from due.storage.files import StorageError, atomic_write, load, save

__all__ = ["StorageError", "atomic_write", "load", "save"]

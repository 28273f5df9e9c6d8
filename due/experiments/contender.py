"""A method in a table: how its estimator is built, and what its numbers depend on."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sklearn import config_context

T = TypeVar("T")


@dataclass(frozen=True)
class Contender:
    """Raise `version` where a default or an algorithm that it relies on changes its numbers.

    `build` takes the seed and, in a comparison, arguments that replace its own. `as_printed` maps
    a data set to the paper's RMSE after random deferral and after deferral by uncertainty.
    """

    title: str
    build: Callable[..., Any]
    version: int = 1
    as_printed: Mapping[str, tuple[str, str]] | None = None

    def settings(self, **given: Any) -> dict[str, Any]:
        """What its numbers depend on, apart from seed and data, as JSON without addresses."""
        with config_context(print_changed_only=True):
            text = " ".join(repr(self.build(0, **given)).split())
        named = re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", text)
        return {"version": self.version, "estimator": re.sub(r" at 0x[0-9a-f]+", "", named)}


def choose(names: str | None, known: Mapping[str, T]) -> dict[str, T]:
    """Those of `known` that `names`, separated by commas, asks for; None is all.

    >>> choose("b, a", {"a": 1, "b": 2, "c": 3})
    {'b': 2, 'a': 1}
    """
    if names is None:
        return dict(known)
    asked = [name.strip() for name in names.split(",") if name.strip()]
    if not asked:
        raise ValueError(f"--methods {names!r} names none; give some of {', '.join(known)}")
    for name in asked:
        if name not in known:
            raise ValueError(f"--methods: unknown method {name!r}; known are {', '.join(known)}")
    return {name: known[name] for name in asked}


def message(error: Exception) -> str:
    """Kind and text of an error, in one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"

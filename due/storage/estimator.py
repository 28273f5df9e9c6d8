"""An estimator as a directory: `config.json` and safetensors, never pickle."""

from abc import abstractmethod
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from due.rows.checks import check_arguments
from due.storage import files, probe
from due.storage.atomic import StorageError
from due.storage.limits import check_numbers, check_row, rebuilding
from due.storage.schema import check_config

PUBLIC = ("due.estimators", "due.baselines")  # where a wrapper looks for what it wraps
Tensors = dict[str, Tensor]


class Memory(NamedTuple):
    """What was learned: JSON about the estimator itself, JSON of its parts, and tensors."""

    estimator: dict[str, Any]
    parts: dict[str, Any]
    tensors: Tensors


class Found(NamedTuple):
    """A saved estimator as it is read, with what the caller of `load` gave."""

    path: str | Path
    config: dict[str, Any]
    tensors: Tensors
    extractor: Any
    device: str | None


class SavedEstimator(BaseEstimator):
    """Abstract: an estimator that says what it learned, and takes it up again."""

    _proof: probe.Proof | None = None  # answers for `save`, if `fit` has asked for them already

    @abstractmethod
    def _memory(self) -> Memory:
        """What was learned, beside the parameters."""

    @abstractmethod
    def _recall(self, found: Found) -> None:
        """Be fitted, as the one whose `_memory` is in `found`; the parameters are set."""

    def save(
        self,
        path: str | Path,
        extra: Mapping[str, Any] | None = None,
        copies: Mapping[str, str] | None = None,
    ) -> None:
        """Write the fitted estimator to the directory `path`: `config.json` and safetensors.

        `extra` are more parts of the configuration, plain JSON, such as the encoders of a table;
        the checksum covers them too. `copies` are more files for people to read, by name.
        """
        config, tensors = self._state()
        form, answers = self._proof or probe.take(self)
        config = {**(extra or {}), **config, **({"probe": form} if form else {})}
        files.save(path, config, {**tensors, **answers}, copies)

    @classmethod
    def load(
        cls,
        path: str | Path,
        extractor: Any = None,
        device: str | None = None,
        *,
        verify: bool = True,
    ) -> Self:
        """The estimator saved at `path`; one with an extractor of its own needs it again here.

        `device` is where it predicts from now on; None is where it was trained. It must answer as
        it did when it was saved; `verify=False` does not ask it.
        """
        model: Self = _load(cls, path, extractor, device, verify)[0]
        return model

    def _state(self) -> tuple[dict[str, Any], Tensors]:
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", np.array([])).tolist()  # empty if `fit` saw none
        header = {**describe(self), "feature_names": names}
        learned, parts, tensors = self._memory()
        return {"estimator": {**header, **learned}, **parts}, tensors

    @classmethod
    def _restore(cls, found: Found) -> Self:
        config, tensors = upgraded(found.config, found.tensors)
        found, saved = found._replace(config=config, tensors=tensors), config["estimator"]
        if saved.get("name") != cls.__name__:
            raise StorageError(
                f"{found.path} holds {saved.get('name', 'no estimator')}, not a {cls.__name__}: "
                "load it with the class that saved it"
            )
        check_config(config)
        check_row(saved.get("row_shape", []), tensors)
        if saved["own_extractor"] and found.extractor is None:
            raise StorageError(
                f"{found.path} was fitted with an extractor of its own: pass the same function as "
                "extractor=, because a file never says what code to run"
            )
        self: Self = unfitted(cls, saved, found)
        check_arguments(self)
        self._recall(found)
        return self


def load_any(
    path: str | Path, extractor: Any = None, device: str | None = None
) -> tuple[Any, dict[str, Any]]:
    """The estimator saved at `path`, of whichever public class of ours, and the configuration."""
    return _load(None, path, extractor, device, verify=True)


def _load(
    kind: type[SavedEstimator] | None,
    path: str | Path,
    extractor: Any,
    device: str | None,
    verify: bool,
) -> tuple[Any, dict[str, Any]]:
    config, tensors = files.load(path)
    with rebuilding(path):
        check_numbers(tensors)
        own, answers = probe.split(tensors)
        kind = kind or kind_of(config["estimator"])
        model = kind._restore(Found(path, config, own, extractor, device))
        if verify:
            probe.compare(model, config.get("probe", {}), answers)
    return model, config


def describe(estimator: Any) -> dict[str, Any]:
    """Class and parameters, as JSON; an estimator among them (`estimator=`) likewise."""
    if not isinstance(estimator, SavedEstimator):
        raise StorageError(
            f"{type(estimator).__name__} has no save without pickle; save an estimator of ours "
            "that has one, such as DUERegressor, TARNet or a wrapper around them"
        )
    params = {name: _plain(value) for name, value in estimator.get_params(deep=False).items()}
    extractor, inner = params.pop("extractor", None), params.pop("estimator", None)
    if "random_state" in params:
        seed = params.pop("random_state")
        params["random_state"] = seed if isinstance(seed, int) else None
    header = {"name": type(estimator).__name__, "params": params}
    if inner is None:
        return {**header, "own_extractor": extractor is not None}
    wrapped = describe(inner)
    return {**header, "own_extractor": wrapped["own_extractor"], "wrapped": wrapped}


def unfitted(kind: type[Any], header: dict[str, Any], found: Found) -> Any:
    """The estimator of `describe`, with the caller's extractor and device.

    A class that earlier versions saved with other arguments has `_arguments` to turn them into its.
    """
    names, params = kind._get_param_names(), dict(header["params"])
    params = kind._arguments(params) if hasattr(kind, "_arguments") else params
    if "extractor" in names:
        params["extractor"] = found.extractor
    if found.device is not None and "device" in names:
        params["device"] = found.device
    if "wrapped" in header:
        params["estimator"] = unfitted(kind_of(header["wrapped"]), header["wrapped"], found)
    return kind(**params)


def restore(found: Found) -> Any:
    """The estimator inside a wrapper: of one of our public classes, whichever the file names."""
    return kind_of(found.config["estimator"])._restore(found)


def kind_of(header: dict[str, Any]) -> type[SavedEstimator]:
    """The class a file names; it must be a public one that saves."""
    for home in map(import_module, PUBLIC):
        kind = getattr(home, header["name"], None)
        if isinstance(kind, type) and issubclass(kind, SavedEstimator):
            return kind
    raise StorageError(
        f"the file speaks of {header['name']!r}, which is no estimator of this due that saves: "
        "upgrade due, or save it anew"
    )


def upgraded(config: dict[str, Any], tensors: Tensors) -> tuple[dict[str, Any], Tensors]:
    """A file of an earlier version as this one writes it; its own stay as they are."""
    config, saved = dict(config), dict(config.get("estimator", {}))
    params = saved.get("params", {})
    if "regressor" in config:  # DUECATE was a wrapper around a DUERegressor
        inner = config.pop("regressor")
        kept = {name: inner["estimator"][name] for name in ("row_shape", "y_scale", "history")}
        saved, config["model"] = {**saved, **kept}, {**inner["model"], "treatment": True}
    elif "model" not in config and saved.get("history"):
        saved["row_shape"] = [len(saved["scale"]["mean"]) + 1]  # [x, t], of an effect network
        config["model"] = {}
        tensors = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    if "gp" in config.get("model", {}):
        chosen = {name: params[name] for name in ("bound", "finish") if name in params}
        config["model"] = {**chosen, **config["model"]}
    return {**config, "estimator": saved}, tensors


def recall_columns(estimator: Any, names: list[str], n: int) -> None:
    """Put back how many columns `fit` saw, and their names if it saw any."""
    estimator.n_features_in_ = n
    if names:
        estimator.feature_names_in_ = np.array(names, dtype=object)


def prefixed(prefix: str, tensors: Tensors) -> Tensors:
    """The tensors under names that begin with `prefix` and a dot."""
    return {f"{prefix}.{name}": tensor for name, tensor in tensors.items()}


def part(prefix: str, tensors: Tensors) -> Tensors:
    """Those tensors under their own names again."""
    start = f"{prefix}."
    return {name[len(start) :]: t for name, t in tensors.items() if name.startswith(start)}


def _plain(value: Any) -> Any:
    if isinstance(value, np.generic):  # a grid search gives np.int64
        return value.item()
    return value.given() if hasattr(value, "given") else value  # a Recipe

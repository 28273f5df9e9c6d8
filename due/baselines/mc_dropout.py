"""MC dropout (Gal & Ghahramani, 2016): n passes of one network, each with other units dropped."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import field
from typing import Any

import torch
from sklearn.base import clone
from sklearn.utils import check_random_state
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd

from due.baselines.ensemble import kind_of
from due.baselines.mixture import Ask, Mixture, MixtureClassifier, MixtureEffects, MixtureRegressor
from due.estimators.effects import EffectEstimator
from due.estimators.network import Trained, estimator
from due.rows.checks import argument, check_whole
from due.rows.randomness import own_randomness, set_random_states
from due.storage.estimator import Found, Memory, restore

Masks = dict[nn.Module, tuple[Tensor, Tensor]]  # slope and shift of each layer


@estimator
class Dropout(Mixture):
    """Abstract: one fitted clone of `estimator`, asked n times while it drops units."""

    estimator: Any = field(kw_only=False)
    n: int = argument(100, check_whole, kw_only=False)
    random_state: Any = None
    _fitted = "estimator_"

    def _learn(self, fit: Ask) -> None:
        model, generator = clone(self.estimator), check_random_state(self.random_state)
        if self.random_state is not None:
            set_random_states(model, generator)
        if not isinstance(model, Trained):
            raise TypeError(
                f"{type(model).__name__} has no passes with dropout: give one of our networks, "
                "such as SoftmaxClassifier, NetworkRegressor or TARNet, or use DeepEnsemble"
            )
        fitted = fit(model)
        if not any(layer.p > 0 for layer in _dropout_layers(fitted.predictor_)):
            raise ValueError(
                f"the network of {type(fitted).__name__} has no dropout layer with p > 0, so all "
                "passes would be equal: give it dropout, or use DeepEnsemble"
            )
        self.estimator_, self.seed_ = fitted, int(generator.randint(2**31 - 1))

    def _each(self, ask: Ask) -> list[Any]:
        drop = dropping if isinstance(self, EffectEstimator) else thinning
        model, answers = self.estimator_, []
        with drop(model.predictor_, self.seed_) as masks:
            for _ in range(self.n):
                masks.clear()  # begins another pass
                answers.append(ask(model))
        return answers

    def _memory(self) -> Memory:
        config, tensors = self.estimator_._state()
        return Memory({"seed": self.seed_}, {"fitted": config}, tensors)

    def _recall(self, found: Found) -> None:
        saved = found.config["estimator"]
        self.estimator_ = restore(found._replace(config=found.config["fitted"]))
        self.seed_ = saved["seed"]
        self._recall_columns(saved["feature_names"])

    @property
    def _one(self) -> Any:
        return self.estimator_


class DropoutClassifier(Dropout, MixtureClassifier):
    """`MCDropout` of a classifier."""


class DropoutRegressor(Dropout, MixtureRegressor):
    """`MCDropout` of a regressor."""


class DropoutEffects(Dropout, MixtureEffects):
    """`MCDropout` of an estimator of treatment effects, with masks of each person and arm."""


def MCDropout(
    estimator: Any, n: int = 100, *, random_state: Any = None
) -> DropoutClassifier | DropoutRegressor | DropoutEffects:
    """One network asked n times with dropout on; its answers are read as those of n models.

    A classifier's `predict_proba` is the mean over the passes, and `uncertainty` the entropy of
    that mean. A regressor's `predict` is the mean over the passes, and `uncertainty` their
    variance (plus the mean of what the estimator itself is unsure of, if it says so). A pass drops
    the same units for all rows, so that a row's answer does not depend on the rows beside it.
    Treatment effects are draws, one per pass, with a mask for each person and arm, as
    in BTARNet; so `ate_interval` takes people for independent and is too narrow. All masks are the
    same at each call.

    Parameters
    ----------
    estimator
        One of our estimators, whose network has dropout layers; it stays as it is.
    n
        Number of passes.
    random_state
        Seed of the masks and of the fit; None leaves the fit to the estimator's `random_state`.

    Returns
    -------
    A `DropoutClassifier`, `DropoutRegressor` or `DropoutEffects`, not yet fitted; once it is, the
    network's estimator is in `estimator_`. It has `save`, and the class has `load`.

    Examples
    --------
    >>> import numpy as np
    >>> from due.baselines import TARNet
    >>> rng = np.random.default_rng(0)
    >>> X, T = rng.normal(size=(100, 2)), rng.integers(2, size=100)
    >>> Y = X[:, 0] + 3 * T + 0.1 * rng.normal(size=100)
    >>> model = MCDropout(TARNet(epochs=5, dropout=0.5), n=10, random_state=0).fit(Y, T, X)
    >>> model.sample_effect(X).shape
    (100, 10)
    """
    kind = kind_of(estimator, DropoutClassifier, DropoutRegressor, DropoutEffects)
    return kind(estimator, n, random_state=random_state)


@contextmanager
def thinning(network: nn.Module, seed: int) -> Iterator[Masks]:
    """Within, a dropout layer does to every row what it did to the first, until masks are cleared.

    Whatever its kind, what it does is affine: x ↦ slope · x + shift.
    """
    masks: Masks = {}

    def thin(layer: nn.Module, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        if layer not in masks:
            masks[layer] = _draw(layer, output[:1])
        slope, shift = masks[layer]
        return slope * output + shift

    hooks = [layer.register_forward_hook(thin) for layer in _dropout_layers(network)]
    try:
        with own_randomness(seed, _device(network)):
            yield masks
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def dropping(network: nn.Module, seed: int) -> Iterator[Masks]:
    """Within, dropout layers drop as in training, by masks from the seed; all else rests."""
    layers = _dropout_layers(network)
    before = [layer.training for layer in layers]
    try:
        with own_randomness(seed, _device(network)):
            for layer in layers:
                layer.train()
            yield {}
    finally:
        for layer, training in zip(layers, before, strict=True):
            layer.train(training)


def _draw(layer: nn.Module, row: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and shift of one draw of the layer in training mode."""
    seed = int(torch.randint(2**31 - 1, ()))
    values = []
    for x in (torch.zeros_like(row), torch.ones_like(row)):
        torch.manual_seed(seed)
        layer.train()
        values.append(layer.forward(x))
        layer.eval()
    shift, whole = values
    return whole - shift, shift


def _device(network: nn.Module) -> torch.device | None:
    return next((p.device for p in network.parameters()), None)


def _dropout_layers(network: nn.Module) -> list[_DropoutNd]:
    return [module for module in network.modules() if isinstance(module, _DropoutNd)]

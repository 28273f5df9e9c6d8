"""Methods to compare: estimators with their defaults; all but GPDNN share the network."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from due import baselines
from due.estimators import DUEClassifier, DUERegressor
from due.experiments.contender import Contender
from due.networks import FCResNet

Make = Callable[..., Any]


def alone(title: str, make: Make, version: int = 1, **own: Any) -> Contender:
    """One model with its own arguments, then those that all methods share."""
    return Contender(title, lambda seed, **given: make(**own, **given, random_state=seed), version)


def ensemble(make: Make) -> Contender:
    """Five models, each from its own start."""
    return Contender(
        "Deep Ensemble of 5",
        lambda seed, **given: baselines.DeepEnsemble(make(**given), 5, random_state=seed),
    )


def mc_dropout(make: Make) -> Contender:
    """One model with dropout; a shared network replaces the one with dropout."""
    return Contender(
        "MC dropout, 100 passes",
        lambda seed, **given: baselines.MCDropout(
            make(**{"extractor": with_dropout, **given}), random_state=seed
        ),
    )


def with_dropout(shape: torch.Size) -> nn.Module:
    """The default network with dropout after each layer."""
    return FCResNet(shape[0], min(max(128, shape[0]), 1024), 4, dropout=0.1)


def tiny(shape: torch.Size) -> nn.Module:
    """For smoke tests."""
    return FCResNet(shape[0], 8, 1, dropout=0.1)


SMOKE = {"extractor": tiny, "epochs": 2}
CLASSIFIERS = {
    "softmax": alone("Softmax", baselines.SoftmaxClassifier),
    "due": alone("DUE", DUEClassifier, version=3),
    "ensemble": ensemble(baselines.SoftmaxClassifier),
    "mc-dropout": mc_dropout(baselines.SoftmaxClassifier),
    "duq": alone("DUQ", baselines.DUQClassifier),
    "sngp": alone("SNGP", baselines.SNGPClassifier, version=2),
    "svdkl": alone("SV-DKL", baselines.SVDKLClassifier, version=2),
    "svdkl-free": alone("SV-DKL, no bound", baselines.SVDKLClassifier, version=2, c=None),
    "gpdnn": alone("GPDNN", baselines.GPDNN, version=3),
    "ddu": alone("DDU", baselines.DDUClassifier),
}
REGRESSORS = {
    "network": alone("Network", baselines.NetworkRegressor),
    "due": alone("DUE", DUERegressor, version=4),
    "ensemble": ensemble(baselines.NetworkRegressor),
    "mc-dropout": mc_dropout(baselines.NetworkRegressor),
    "sngp": alone("SNGP", baselines.SNGPRegressor),
    "svdkl": alone("SV-DKL", baselines.SVDKLRegressor),
    "svdkl-free": alone("SV-DKL, no bound", baselines.SVDKLRegressor, c=None),
    "exact-gp": Contender("Exact GP", lambda seed, **given: baselines.ExactGPRegressor()),
}
ENGINES = {"svdkl": "gpytorch", "svdkl-free": "gpytorch"}  # in the extra `rivals`

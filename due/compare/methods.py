"""Methods to compare: estimators as they come; those with a network share it but for GPDNN."""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sklearn import config_context
from torch import nn

from due.baselines import (
    GPDNN,
    DDUClassifier,
    DeepEnsemble,
    DUQClassifier,
    ExactGPRegressor,
    MCDropout,
    NetworkRegressor,
    SNGPClassifier,
    SNGPRegressor,
    SoftmaxClassifier,
    SVDKLClassifier,
    SVDKLRegressor,
)
from due.estimators import DUEClassifier, DUERegressor
from due.networks import FCResNet

Json = dict[str, Any]


@dataclass(frozen=True)
class Method:
    """Raise `version` where a default or an algorithm it relies on changes its numbers.

    `build` takes the seed and the arguments that all methods share, which replace its own.
    """

    title: str
    build: Callable[[int, Json], Any]
    version: int = 1

    def settings(self, shared: Json) -> Json:
        """What makes a line ours, whatever the seed."""
        with config_context(print_changed_only=True):
            text = " ".join(repr(self.build(0, shared)).split())
        plain = re.sub(r"<function (\S+) at 0x[0-9a-f]+>", r"\1", text)
        return {"version": self.version, "estimator": plain, "smoke": bool(shared)}


def with_dropout(shape: torch.Size) -> nn.Module:
    """The default network with dropout after each layer."""
    return FCResNet(shape[0], min(max(128, shape[0]), 1024), 4, dropout=0.1)


def tiny(shape: torch.Size) -> nn.Module:
    """For smoke tests."""
    return FCResNet(shape[0], 8, 1, dropout=0.1)


SMOKE: Json = {"extractor": tiny, "epochs": 2}
DROPOUT: Json = {"extractor": with_dropout}

CLASSIFIERS = {
    "softmax": Method("Softmax", lambda seed, given: SoftmaxClassifier(**given, random_state=seed)),
    "due": Method("DUE", lambda seed, given: DUEClassifier(**given, random_state=seed)),
    "ensemble": Method(
        "Deep Ensemble of 5",
        lambda seed, given: DeepEnsemble(SoftmaxClassifier(**given), 5, random_state=seed),
    ),
    "mc-dropout": Method(
        "MC dropout, 100 passes",
        lambda seed, given: MCDropout(SoftmaxClassifier(**{**DROPOUT, **given}), random_state=seed),
    ),
    "duq": Method("DUQ", lambda seed, given: DUQClassifier(**given, random_state=seed)),
    "sngp": Method(
        "SNGP", lambda seed, given: SNGPClassifier(**given, random_state=seed), version=2
    ),
    "svdkl": Method(
        "SV-DKL", lambda seed, given: SVDKLClassifier(**given, random_state=seed), version=2
    ),
    "svdkl-free": Method(
        "SV-DKL, no bound",
        lambda seed, given: SVDKLClassifier(**given, c=None, random_state=seed),
        version=2,
    ),
    "gpdnn": Method("GPDNN", lambda seed, given: GPDNN(**given, random_state=seed)),
    "ddu": Method("DDU", lambda seed, given: DDUClassifier(**given, random_state=seed)),
}
REGRESSORS = {
    "network": Method("Network", lambda seed, given: NetworkRegressor(**given, random_state=seed)),
    "due": Method("DUE", lambda seed, given: DUERegressor(**given, random_state=seed)),
    "ensemble": Method(
        "Deep Ensemble of 5",
        lambda seed, given: DeepEnsemble(NetworkRegressor(**given), 5, random_state=seed),
    ),
    "mc-dropout": Method(
        "MC dropout, 100 passes",
        lambda seed, given: MCDropout(NetworkRegressor(**{**DROPOUT, **given}), random_state=seed),
    ),
    "sngp": Method("SNGP", lambda seed, given: SNGPRegressor(**given, random_state=seed)),
    "svdkl": Method("SV-DKL", lambda seed, given: SVDKLRegressor(**given, random_state=seed)),
    "svdkl-free": Method(
        "SV-DKL, no bound",
        lambda seed, given: SVDKLRegressor(**given, c=None, random_state=seed),
    ),
    "exact-gp": Method("Exact GP", lambda seed, given: ExactGPRegressor()),
}
ENGINES = {"svdkl": "gpytorch", "svdkl-free": "gpytorch"}  # of the extra `rivals`

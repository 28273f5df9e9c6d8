"""What is fuzzed: a saved model of each kind, and a training run that was interrupted."""

import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from due import DUE, DUECATE, DUEClassifier, DUERegressor, Recipe, Table, fit
from due.baselines import (
    DeepEnsemble,
    ExactGPRegressor,
    MCDropout,
    NetworkRegressor,
    SNGPClassifier,
    SoftmaxClassifier,
    TARNet,
)
from due.gp import Gaussian, InducingGP
from due.networks import FCResNet
from due.storage import model as bare

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 3)) * [1.0, 10.0, 0.1] + [0.0, 5.0, 1.0]
T = np.arange(60) % 2
Y = X[:, 0] + T + 0.1 * RNG.normal(size=60)
LABELS = np.array(["ham", "spam", "eggs"])[np.digitize(Y, [0.0, 1.0])]
ASKED = X[:12]
Answers = list[NDArray[Any]]


def small(shape: torch.Size) -> FCResNet:
    return FCResNet(shape[0], 8, 2, dropout=0.1)


@dataclass
class Subject:
    """A folder, how it is loaded, and what is asked of the model."""

    folder: Path
    load: Callable[[Path], Any]
    ask: Callable[[Any], Answers]


GP: dict[str, Any] = {"epochs": 2, "n_inducing": 6, "random_state": 0}
TINY: dict[str, Any] = {"epochs": 2, "random_state": 0}


def classes(model: Any) -> Answers:
    return [model.predict(ASKED), model.predict_proba(ASKED), model.uncertainty(ASKED)]


def values(model: Any) -> Answers:
    return [np.asarray(part) for part in model.predict(ASKED, return_std=True)]


def effects(model: Any) -> Answers:
    return [model.potential_outcomes(ASKED), model.effect(ASKED)]


@torch.no_grad()
def deep_gp(model: Any) -> Answers:
    return [part.numpy() for part in model.predict(torch.as_tensor(ASKED).float())]


def subjects(home: Path) -> list[Subject]:
    """One of each kind, saved under `home`."""
    found = []
    table: list[tuple[Any, tuple[Any, ...], Any, Any]] = [
        (DUEClassifier(small, calibration_fraction=0.2, **GP), (X, LABELS), classes, small),
        (DUEClassifier(**GP), (X, T), classes, None),
        (SNGPClassifier(small, n_random_features=16, **TINY), (X, LABELS), classes, small),
        (
            DeepEnsemble(SoftmaxClassifier(small, epochs=1), 2, random_state=0),
            (X, T),
            classes,
            small,
        ),
        (DUERegressor(small, **GP), (X, Y), values, small),
        (DUERegressor(**GP), (X, np.column_stack([Y, -Y])), values, None),
        (MCDropout(NetworkRegressor(small, epochs=1), 3, random_state=0), (X, Y), values, small),
        (ExactGPRegressor(steps=2), (X, Y), values, None),
        (DUECATE(small, **GP), (Y, T, X), effects, small),
        (TARNet(width=8, **TINY), (Y, T, X), effects, None),
    ]
    for i, (model, data, ask, extractor) in enumerate(table):
        kind, folder = type(model), home / str(i)
        model.fit(*data).save(folder)
        found.append(
            Subject(folder, lambda path, k=kind, e=extractor: k.load(path, e), ask)  # type: ignore[misc]
        )
    f = FCResNet(3, 8, 2)
    due = DUE(f, InducingGP(torch.randn(5, 8)), Gaussian())
    fit(
        due,
        Table(torch.as_tensor(X).float(), torch.as_tensor(Y)[:, None].float()),
        Recipe(epochs=2),
    )
    bare.save(due, home / "bare")
    return [*found, Subject(home / "bare", bare.load, deep_gp)]


ROWS = Table(torch.as_tensor(X).float(), torch.as_tensor(Y)[:, None].float())


def train(file: Path | None, stop: int | None = None) -> Answers:
    """A short run with a checkpoint after each step; `stop` interrupts it after so many epochs."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        method = DUE(FCResNet(3, 4, 1), InducingGP(torch.zeros(4, 4)), Gaussian(), bound="elbo")

    def after(epoch: int) -> None:
        if epoch == stop:
            raise KeyboardInterrupt

    recipe = Recipe(epochs=4, batch_size=30, schedule="cosine")
    fit(
        method,
        ROWS,
        recipe,
        held_out=Table(*(part[:20] for part in ROWS.data)),
        checkpoint=file,
        checkpoint_every=1,
        progress=False,
        after_epoch=after,
    )
    return [tensor.detach().numpy() for tensor in method.state_dict().values()]


def interrupted() -> tuple[Path, Answers]:
    """A checkpoint of a run that was stopped half way, and how the whole run ends."""
    file = Path(tempfile.mkdtemp()) / "run.pt"
    with suppress(KeyboardInterrupt):
        train(file, stop=2)
    return file, train(None)

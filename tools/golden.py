"""Answers of every estimator at small settings and fixed seeds, to compare two versions of due.

python tools/golden.py write FILE [--saved DIR]   store the answers, and each model as a folder
python tools/golden.py check FILE                 compare with answers stored by another version

Training amplifies rounding, so both versions must run on the same processor.
"""

import argparse
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import torch

from due import baselines
from due.estimators import DUECATE, DUEClassifier, DUERegressor
from due.networks import FCResNet

TOLERANCE = 1e-6
Answers = dict[str, np.ndarray]


def small(shape: torch.Size) -> FCResNet:
    return FCResNet(shape[0], 8, 2, dropout=0.1)


def encoder(shape: torch.Size) -> FCResNet:
    return FCResNet(shape[0], 12, 1, activation="elu", dropout=0.1)


def make(kind: Any, *args: Any, **arguments: Any) -> Any:
    """The estimator; training arguments without a place of their own go into its recipe."""
    try:
        from due.training import Recipe
    except ImportError:  # the version before recipes
        return kind(*args, **arguments)
    names = {"gp_lr": "head_lr"} | {f.name: f.name for f in fields(Recipe)}
    owner: Any = kind if isinstance(kind, type) else DUEClassifier
    known = owner._get_param_names()
    moved = {names[k]: arguments.pop(k) for k in list(arguments) if k not in known and k in names}
    return kind(*args, **arguments, **({"recipe": Recipe(**moved)} if moved else {}))


def class_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=90)
    X = rng.normal(size=(90, 3)) + 2 * np.eye(3)[y]
    return X, np.array(["a", "b", "c"])[y], rng.normal(size=(25, 3)) * 3


def value_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(1)
    X = rng.normal(size=(80, 2))
    return (
        X,
        np.sin(2 * X[:, 0]) * 3 + X[:, 1] + 0.1 * rng.normal(size=80),
        rng.normal(size=(25, 2)),
    )


def effect_rows() -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(2)
    X = np.column_stack([rng.normal(size=(120, 2)), rng.integers(2, size=120)])
    T = rng.integers(2, size=120)
    Y = X[:, 0] + T * (1 + X[:, 1]) + 0.1 * rng.normal(size=120)
    new = np.column_stack([rng.normal(size=(25, 2)), rng.integers(2, size=25)])
    return Y, T, X, new


def classifiers() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    b, few = baselines, {"epochs": 4, "random_state": 3}
    weight = {"sample_weight": np.arange(90) % 3 + 1.0}
    yield "due", make(DUEClassifier, small, **few, n_inducing=10), {}
    yield "due-default", make(DUEClassifier, epochs=2, random_state=0), {}
    yield "due-weights", make(DUEClassifier, small, **few, n_inducing=10), weight
    yield (
        "due-held-out",
        make(DUEClassifier, small, random_state=1, epochs=9, validation_fraction=0.25, patience=3),
        {},
    )
    yield (
        "due-options",
        make(
            DUEClassifier,
            small,
            random_state=1,
            epochs=3,
            batch_size=20,
            lr=1e-3,
            gp_lr=2e-3,
            weight_decay=1e-3,
            c=None,
            kernel="rq",
            scale_inputs=False,
            warm_start_q=False,
            probabilities="mean_field",
        ),
        {},
    )
    yield "gpdnn", make(b.GPDNN, epochs=2, random_state=0), {}
    yield "softmax", make(b.SoftmaxClassifier, small, **few), {}
    yield "softmax-weights", make(b.SoftmaxClassifier, small, **few, c=0.9), weight
    yield "duq", make(b.DUQClassifier, small, **few), weight
    yield "sngp", make(b.SNGPClassifier, small, **few, n_random_features=32), weight
    yield (
        "sngp-per-class",
        make(
            b.SNGPClassifier,
            small,
            **few,
            n_random_features=32,
            curvature="per_class",
            layer_norm=True,
            validation_fraction=0.2,
        ),
        {},
    )
    yield "ddu", make(b.DDUClassifier, small, **few), weight
    yield "svdkl", make(b.SVDKLClassifier, small, **few, n_grid=12), {}
    yield (
        "ensemble",
        b.DeepEnsemble(make(b.SoftmaxClassifier, small, epochs=3), 2, random_state=0),
        {},
    )
    yield "dropout", b.MCDropout(make(b.SoftmaxClassifier, small, **few), 5, random_state=0), {}


def regressors() -> Iterator[tuple[str, Any, dict[str, Any]]]:
    b, few = baselines, {"epochs": 6, "random_state": 3}
    weight = {"sample_weight": np.arange(80) % 3 + 1.0}
    yield "due", make(DUERegressor, small, **few, n_inducing=10), {}
    yield "due-default", make(DUERegressor, epochs=4, random_state=0), {}
    yield "due-weights", make(DUERegressor, small, **few, n_inducing=10), weight
    yield "due-elbo", make(DUERegressor, small, **few, n_inducing=10, bound="elbo"), weight
    for finish in ("q", "gp", "nothing"):
        yield f"due-{finish}", make(DUERegressor, small, **few, n_inducing=10, finish=finish), {}
    yield "due-all", make(DUERegressor, small, **few, n_inducing=9, validation_fraction=0.0), {}
    yield "network", make(b.NetworkRegressor, small, **few), weight
    yield "sngp", make(b.SNGPRegressor, small, **few, n_random_features=32), weight
    yield "sngp-fixed", make(b.SNGPRegressor, small, **few, n_random_features=32, sigma2=1.0), {}
    yield "svdkl", make(b.SVDKLRegressor, small, **few, n_grid=12), {}
    yield "exact", b.ExactGPRegressor(), {}
    yield (
        "ensemble",
        b.DeepEnsemble(make(b.NetworkRegressor, small, epochs=3), 2, random_state=0),
        {},
    )
    yield (
        "ensemble-due",
        b.DeepEnsemble(make(DUERegressor, small, epochs=3, n_inducing=5), 2, random_state=0),
        {},
    )
    yield "dropout", b.MCDropout(make(b.NetworkRegressor, small, **few), 5, random_state=0), {}
    yield (
        "dropout-due",
        b.MCDropout(make(DUERegressor, small, **few, n_inducing=5), 5, random_state=0),
        {},
    )


def effects() -> Iterator[tuple[str, Any]]:
    b, few = baselines, {"epochs": 6, "random_state": 3}
    yield "cate", make(DUECATE, encoder, **few, n_inducing=10)
    yield "cate-default", make(DUECATE, epochs=5, random_state=0)
    yield "cate-patience", make(DUECATE, encoder, random_state=0, patience=5, n_inducing=10)
    yield "cate-paper", DUECATE.paper(extractor=encoder, **few, n_inducing=10)
    yield "cate-input", make(DUECATE, encoder, **few, treatment="input", own_scale=False)
    yield "cate-noise", make(DUECATE, encoder, **few, finish="noise", validation_fraction=0.2)
    yield "tarnet", make(b.TARNet, width=12, **few)
    yield "cevae", make(b.CEVAE, width=12, latent=4, **few)
    yield "dklite", make(b.DKLITE, width=8, epochs=20, random_state=3)
    yield "arm-gp", b.ArmGP()
    yield "s-learner", b.SLearner(random_state=0)
    yield "t-learner", b.TLearner(random_state=0)
    yield "ensemble", b.DeepEnsemble(make(b.TARNet, width=8, epochs=3), 2, random_state=0)
    yield (
        "ensemble-cate",
        b.DeepEnsemble(make(DUECATE, encoder, epochs=3, n_inducing=5), 2, random_state=0),
    )
    yield (
        "btarnet",
        b.MCDropout(
            make(b.TARNet, width=8, components=1, dropout=0.5, epochs=3), 5, random_state=0
        ),
    )
    yield "bcevae", b.MCDropout(make(b.CEVAE, width=8, latent=3, epochs=3), 5, random_state=0)


def ask_class(model: Any, X: np.ndarray) -> Answers:
    answers = {"probabilities": model.predict_proba(X), "uncertainty": model.uncertainty(X)}
    if hasattr(model, "uncertainty_details"):
        answers |= {f"details.{k}": v for k, v in model.uncertainty_details(X)._asdict().items()}
    for name in ("entropy", "distance"):
        if hasattr(model, name):
            answers[name] = getattr(model, name)(X)
    return answers


def ask_value(model: Any, X: np.ndarray) -> Answers:
    mean, std = model.predict(X, return_std=True)
    answers = {"mean": mean, "std": std, "uncertainty": model.uncertainty(X)}
    if hasattr(model, "uncertainty_details"):
        answers |= {f"details.{k}": v for k, v in model.uncertainty_details(X)._asdict().items()}
        answers |= {"cov": model.predict(X, return_cov=True)[1], "draws": model.sample_y(X, 3)}
    return answers


def ask_effect(model: Any, X: np.ndarray) -> Answers:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lower, upper = model.effect_interval(X) if hasattr(model, "effect_interval") else (0, 0)
        answers = {"effect": model.effect(X), "outcomes": model.potential_outcomes(X)}
        answers |= {"lower": np.asarray(lower), "upper": np.asarray(upper)}
        if hasattr(model, "ate_interval"):
            answers["ate_interval"] = np.array(model.ate_interval(X))
        if hasattr(model, "overlap"):
            answers |= {"overlap": model.overlap(X), "draws": model.sample_effect(X, 3)}
    return answers


def all_models() -> Iterator[tuple[str, Any, Answers]]:
    X, y, new = class_rows()
    for name, model, extra in classifiers():
        yield f"class/{name}", model.fit(X, y, **extra), ask_class(model, new)
    model = make(DUEClassifier, small, epochs=2, n_inducing=10, random_state=0, warm_start=True)
    yield "class/continued", model.fit(X, y).fit(X, y), ask_class(model, new)
    X, y, new = value_rows()
    for name, model, extra in regressors():
        yield f"value/{name}", model.fit(X, y, **extra), ask_value(model, new)
    model = make(DUERegressor, small, epochs=4, n_inducing=10, random_state=0)
    model.fit(X, np.column_stack([y, X]), validation=(X[:20], np.column_stack([y, X])[:20]))
    yield "value/three", model, ask_value(model, new)
    Y, T, X, new = effect_rows()
    for name, model in effects():
        yield f"effect/{name}", model.fit(Y, T, X=X), ask_effect(model, new)
    model = make(DUECATE, encoder, epochs=6, n_inducing=10, random_state=0)
    model.fit(Y[:80], T[:80], X=X[:80], validation=(Y[80:], T[80:], X[80:]))
    yield "effect/validation", model, ask_effect(model, new)


def write(file: Path, saved: Path | None) -> None:
    answers: dict[str, Any] = {}
    for name, model, found in all_models():
        print(name, flush=True)
        answers |= {f"{name}/{key}": value for key, value in found.items()}
        if saved is not None and hasattr(model, "save"):
            model.save(saved / name.replace("/", "-"))
    np.savez_compressed(file, **answers)


def check(file: Path) -> int:
    stored, worst = dict(np.load(file)), 0.0
    for name, _, found in all_models():
        gaps = {}
        for key, value in found.items():
            want = stored[f"{name}/{key}"]
            scale = max(1.0, float(np.abs(want).max()))
            gaps[key] = float(np.abs(value - want).max()) / scale
        largest = max(gaps, key=lambda key: gaps[key])
        worst = max(worst, gaps[largest])
        mark = "" if gaps[largest] <= TOLERANCE else "   DIFFERS"
        print(f"{name:<28} {gaps[largest]:.1e} ({largest}){mark}", flush=True)
    print(f"largest difference {worst:.1e}, allowed {TOLERANCE:.0e}")
    return int(worst > TOLERANCE)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("action", choices=["write", "check"])
    parser.add_argument("file", type=Path)
    parser.add_argument("--saved", type=Path, help="where each model goes as a folder")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.action == "write":
        write(options.file, options.saved)
    else:
        raise SystemExit(check(options.file))


if __name__ == "__main__":
    main()

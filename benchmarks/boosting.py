"""`due fit` on real tables, from CSV to predictions, beside LightGBM with its defaults.

Both learn from the same rows of a table and are measured on the same test rows. LightGBM has no
variance and no OOD score: its NLL of values takes the spread of its errors on the calibration
rows, its 95 % intervals are split-conformal on them, and its score for far rows is the entropy of
its class probabilities. Far rows are test rows with each number moved up or down by three standard
deviations. Each saved folder is then all that `due report` and `due predict` (or `due effect`) get
in processes of their own: "same" says whether a page was written and each cell of the predictions
was that of the model before it was saved, to 12 digits. IHDP is fitted with --treatment; the rival
there is LightGBM per arm (a T-learner), and the error is that of the true effect, which the
simulation knows.

    python benchmarks/boosting.py [--seeds 1] [--data iris,yacht] [--smoke]

Needs `pip install 'due[tables,benchmarks]'`; UCI and IHDP files under DUE_DATA. Each fit is
written to results/boosting.jsonl, the table to boosting.txt: the same command continues.
"""

import argparse
import os
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pandas as pd
import torch
from sklearn import datasets

from due import metrics
from due.data import ihdp, uci
from due.data.download import find
from due.experiments.journal import Journal
from due.tables import TableModel
from due.tables.calibration import calibrate
from due.tables.command import fit_file
from due.tables.measure import of_classes, of_values
from due.tables.reading import read
from due.tables.target import CLASSIFICATION, EFFECT
from due.tables.writing import write

MOVED = 3.0  # standard deviations


def bundled(load: Callable[..., Any]) -> pd.DataFrame:
    """A set of scikit-learn, labels as words."""
    found = load(as_frame=True)
    names = getattr(found, "target_names", None)
    if names is None:
        return found.frame
    return found.frame.assign(target=[str(names[code]) for code in found.target])


def of_uci(name: str) -> pd.DataFrame:
    """A UCI set, all its rows."""
    X, y, X_test, y_test = uci.load(name, 0)
    frame = pd.DataFrame(np.concatenate([X, X_test])).add_prefix("x")
    return frame.assign(target=np.concatenate([y, y_test]))


SETS: dict[str, Callable[[], pd.DataFrame]] = {
    "iris": partial(bundled, datasets.load_iris),
    "wine": partial(bundled, datasets.load_wine),
    "breast-cancer": partial(bundled, datasets.load_breast_cancer),
    "digits": partial(bundled, datasets.load_digits),
    "diabetes": partial(bundled, datasets.load_diabetes),
    **{n: partial(of_uci, n) for n in uci.NAMES if find(f"uci/{n}.npz") is not None},
}


def learned(table: pd.DataFrame, model: TableModel, seed: int) -> tuple[Any, dict[str, Any], Any]:
    """LightGBM on the rows that the model learned from; its metrics and its far score."""
    import lightgbm

    parts = model.split.parts(table)
    known, held = np.isin(parts, ("train", "validation")), parts == "calibration"
    X, y = model.encode(table), model.target.read(table[model.target.name])
    new = parts == "test"
    plain: dict[str, Any] = {"random_state": seed, "n_jobs": 1, "verbose": -1}
    began = time.process_time()
    if model.task == CLASSIFICATION:
        rival = lightgbm.LGBMClassifier(**plain).fit(X[known], y[known])
        taken = time.process_time() - began
        p = np.asarray(rival.predict_proba(X[new]))
        codes = np.searchsorted(rival.classes_, y[new])
        found = of_classes(p, codes, metrics.entropy(p))
        return (
            rival,
            found | {"seconds": taken},
            lambda rows: metrics.entropy(rival.predict_proba(rows)),
        )
    rival = lightgbm.LGBMRegressor(**plain).fit(X[known], y[known])
    taken = time.process_time() - began
    errors = np.abs(y[held] - rival.predict(X[held]))
    std = np.full(new.sum(), np.sqrt(np.mean(errors**2)))
    half = calibrate(errors, errors / std[0]).width(0.05) * std
    mean = np.asarray(rival.predict(X[new]))
    return rival, of_values(y[new], mean, std, mean - half, mean + half) | {"seconds": taken}, None


def far_rows(X: Any, model: TableModel, spread: Any, seed: int) -> Any:
    """Rows with each number moved; categories stay."""
    signs = np.random.default_rng(seed).choice([-1.0, 1.0], size=X.shape)
    moves = np.zeros(X.shape[1])
    for column, place in zip(model.encoder.columns_, model.encoder.slices(), strict=True):
        if column.kind == "numeric":
            moves[place.start] = MOVED * spread[place.start]
    return X + signs * moves


def same_from_folder(model: TableModel, folder: Path, file: Path) -> bool:
    """Whether processes that know the folder alone write a page and the same predictions."""
    here, there, page = (folder / name for name in ("here.csv", "there.csv", "page.html"))
    write(here, [model.predict(read(file))])
    question = "effect" if model.task == EFFECT else "predict"
    due(question, str(folder), str(file), "-o", str(there))
    due("report", str(folder), str(file), "-o", str(page))
    try:  # a quantile of a mixture rounds by where in its chunk a row is
        pd.testing.assert_frame_equal(pd.read_csv(here), pd.read_csv(there), rtol=1e-12, atol=0)
    except AssertionError:
        return False
    return page.stat().st_size > 0


def due(*words: str) -> None:
    """The command line, in a process of its own."""
    command = [sys.executable, "-c", "from due.cli import app; app()", *words, "--quiet"]
    alone = {**os.environ, "OMP_NUM_THREADS": "1"}  # as here: other sums round otherwise
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=alone)


def one(name: str, seed: int, home: Path, epochs: int | None) -> dict[str, Any]:
    """Fit, save, load and measure, beside LightGBM."""
    file, folder = home / f"{name}.csv", home / f"{name}-{seed}"
    SETS[name]().to_csv(file, index=False)
    began = time.process_time()
    model = fit_file(
        str(file), folder, "target", reading={}, estimator={"epochs": epochs}, seed=seed,
        beside=False,
    )  # fmt: skip
    taken = time.process_time() - began
    table = read(file)
    same = same_from_folder(model, folder, file)
    parts, X = model.split.parts(table), model.encode(table)
    inside = X[parts == "test"]
    outside = far_rows(inside, model, X[parts == "train"].std(0), seed)
    own = model.measured | {"seconds": taken}
    own["far"] = metrics.auroc(model.ood_scores(inside), model.ood_scores(outside))
    _, rival, score = learned(table, model, seed)
    rival["far"] = None if score is None else metrics.auroc(score(inside), score(outside))
    return {"task": model.task, "rows": len(table), "same": same, "due": own, "lightgbm": rival}


def effect(seed: int, home: Path, epochs: int | None) -> dict[str, Any]:
    """IHDP: the RMSE of the effect of test people, and of LightGBM per arm."""
    import lightgbm

    data = ihdp.load(seed)
    study, new = data.train, data.test
    frame = pd.DataFrame(study.X).add_prefix("x").assign(t=study.t.astype(int), y=study.y)
    file, folder = home / "ihdp.csv", home / f"ihdp-{seed}"
    frame.to_csv(file, index=False)
    began = time.process_time()
    model = fit_file(
        str(file), folder, "y", reading={}, estimator={"epochs": epochs}, treatment="t", seed=seed
    )
    taken = time.process_time() - began
    people = pd.DataFrame(new.X).add_prefix("x")
    same = same_from_folder(model, folder, file)
    found = TableModel.load(folder).predict(people, echo=False)
    plain: dict[str, Any] = {"random_state": seed, "n_jobs": 1, "verbose": -1}
    arms = [
        lightgbm.LGBMRegressor(**plain).fit(study.X[study.t == arm], study.y[study.t == arm])
        for arm in (0, 1)
    ]
    theirs = np.subtract(*(np.asarray(arm.predict(new.X)) for arm in arms[::-1]))
    tau = new.mu1 - new.mu0
    covered = metrics.coverage(tau, found["lower"].to_numpy(), found["upper"].to_numpy())
    own = {"rmse": metrics.rmse(tau, found["effect"].to_numpy()), "coverage": covered}
    rival = {"rmse": metrics.rmse(tau, theirs)}
    return {"task": EFFECT, "rows": len(frame), "same": same, "due": own | {"seconds": taken},
            "lightgbm": rival}  # fmt: skip


def text(lines: dict[str, list[dict[str, Any]]]) -> str:
    """Means over seeds, one row per set and method."""
    shown = ["data", "rows", "method", "error", "NLL", "cover", "ECE", "far", "CPU s", "same"]
    rows = []
    for name, found in lines.items():
        for method in ("due", "lightgbm"):
            of = [line[method] for line in found]
            error = "accuracy" if found[0]["task"] == CLASSIFICATION else "rmse"
            values = [1 - _mean(of, error) if error == "accuracy" else _mean(of, error)]
            values += [_mean(of, key) for key in ("nll", "coverage", "ece", "far", "seconds")]
            same = str(all(line["same"] for line in found)) if method == "due" else ""
            cells = ["–" if np.isnan(value) else f"{value:.4g}" for value in values]
            rows.append([name, str(found[0]["rows"]), method, *cells, same])
    widths = [max(len(row[i]) for row in [shown, *rows]) for i in range(len(shown))]
    return "\n".join(
        "  ".join(cell.ljust(w) if i < 3 else cell.rjust(w) for i, (cell, w) in
                  enumerate(zip(row, widths, strict=True))).rstrip()
        for row in [shown, *rows]
    )  # fmt: skip


def _mean(found: list[dict[str, Any]], key: str) -> float:
    values = [line[key] for line in found if line.get(key) is not None]
    return float(np.mean(values)) if values else float("nan")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--data", default=None)
    parser.add_argument("--smoke", action="store_true")
    given = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", message="X does not have valid feature names")
    names = [*SETS, *(["ihdp"] if find("ihdp/ihdp.RData") is not None else [])]
    chosen = given.data.split(",") if given.data else ["iris", "diabetes"] if given.smoke else names
    epochs = 2 if given.smoke else None
    lines: dict[str, list[dict[str, Any]]] = {}
    with TemporaryDirectory() as home:
        place = Path(home) if given.smoke else Path("results")
        journal = Journal(place / "boosting.jsonl", ("data", "seed"), ("numbers",))
        for name in chosen:
            for seed in range(given.seeds):
                settings = {"version": 3, "epochs": epochs}
                line = journal.find(settings, data=name, seed=seed)
                if line is None:
                    numbers = (
                        effect(seed, Path(home), epochs)
                        if name == "ihdp"
                        else one(name, seed, Path(home), epochs)
                    )
                    line = journal.add(settings, {"numbers": numbers}, data=name, seed=seed)
                lines.setdefault(name, []).append(line["numbers"])
    print(text(lines))
    if not (given.smoke or given.data):
        Path("results/boosting.txt").write_text(text(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()

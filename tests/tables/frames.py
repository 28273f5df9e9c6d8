"""Small tables, and models that are fitted in about a second."""

import numpy as np
import pandas as pd

from due import DUECATE, DUEClassifier, DUERegressor
from due.networks import FCResNet
from due.tables import fit

N = 240


def small(shape):
    return FCResNet(shape[0], 16, 1)


def people(n=N, seed=0):
    """Numbers, categories, truth values, dates and missing cells; y is a word, z a number."""
    rng = np.random.default_rng(seed)
    x, city = rng.normal(size=n), rng.choice(["Oslo", "Rome", "Lima"], n)
    age = pd.Series(rng.integers(18, 80, n).astype(float)).mask(rng.random(n) < 0.1)
    day = pd.date_range("2024-01-01", periods=n).strftime("%Y-%m-%d")
    score = x + (city == "Rome")
    return pd.DataFrame(
        {
            "id": range(n),
            "x": x,
            "city": city,
            "age": age,
            "member": rng.choice(["yes", "no"], n),
            "day": day,
            "y": np.where(score > 0, "good", "bad"),
            "z": score + 0.1 * rng.normal(size=n),
        }
    )


def classifier(frame=None, **how):
    frame = people().drop(columns="z") if frame is None else frame
    model = DUEClassifier(epochs=3, n_inducing=10, random_state=0)
    return fit(frame, "y", estimator=model, **{"beside": False, **how})


def regressor(frame=None, **how):
    frame = people().drop(columns="y") if frame is None else frame
    model = DUERegressor(epochs=20, n_inducing=20, random_state=0)
    return fit(frame, "z", estimator=model, **{"beside": False, **how})


def effects(frame=None, **how):
    frame = people().drop(columns="y") if frame is None else frame
    model = DUECATE(epochs=20, n_inducing=20, random_state=0)
    return fit(frame, "z", treatment="member", estimator=model, **how)


def text(frame, **how):
    return frame.to_csv(index=False, **how)

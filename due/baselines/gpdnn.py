"""GPDNN (Bradshaw et al., 2017), a recipe: DUE on a network that nothing keeps from collapsing."""

from typing import Any

import torch
from torch import nn

from due.estimators import DUEClassifier
from due.networks import FeedForward


def GPDNN(**changes: Any) -> DUEClassifier:
    """An inducing-point GP on an unbounded feed-forward network, all else as in `DUEClassifier`.

    Its `uncertainty` is the entropy of the predicted probabilities. It differs from DUE by its
    extractor, `feed_forward`, and by c = None: what keeps the features' distances.

    Parameters
    ----------
    changes
        Arguments of `DUEClassifier` by name.

    Returns
    -------
    A `DUEClassifier`, not yet fitted. What it saves is loaded with the same extractor:
    `DUEClassifier.load(path, feed_forward)`.

    Examples
    --------
    >>> from sklearn.datasets import make_moons
    >>> X, y = make_moons(200, noise=0.1, random_state=0)
    >>> model = GPDNN(epochs=20, random_state=0).fit(X, y)
    >>> bool(model.score(X, y) > 0.95)
    True
    """
    return DUEClassifier(**{"extractor": feed_forward, "c": None, **changes})


def feed_forward(shape: torch.Size) -> nn.Module:
    """The layers of the default network without its skip connections."""
    if len(shape) != 1:
        raise ValueError(
            f"rows have shape {tuple(shape)}; this network takes vectors: flatten them or give "
            "an extractor, a function from the shape of a row to an nn.Module"
        )
    return FeedForward(shape[0], min(max(128, shape[0]), 1024), 4)

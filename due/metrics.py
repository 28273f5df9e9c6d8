"""Metrics: pure functions of arrays. Each docstring starts with the formula it computes.

Classification takes `probs` (N, C) and labels `y` (N,); regression takes `y`, (N,) or (N, T).
The mean_nt runs over all N rows and all T outputs. Logarithms are natural.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import entr, ndtr

Array = NDArray[np.float64]


def accuracy(probs: ArrayLike, y: ArrayLike) -> float:
    """mean_n 1[argmax_c p_nc = y_n]; the first of tied classes is the prediction.

    >>> accuracy([[0.9, 0.1], [0.3, 0.7]], [0, 0])
    0.5
    """
    p, label = _classification(probs, y)
    return float(np.mean(p.argmax(1) == label))


def nll(probs: ArrayLike, y: ArrayLike) -> float:
    """−mean_n log p_n[y_n], where p is the predictive: E_q taken inside the logarithm.

    It is inf when a label has probability zero.

    >>> round(nll([[0.9, 0.1], [0.3, 0.7]], [0, 1]), 4)
    0.231
    """
    p, label = _classification(probs, y)
    with np.errstate(divide="ignore"):
        return float(-np.log(p[np.arange(len(p)), label]).mean())


def expected_nll(log_p: ArrayLike) -> float:
    """−mean_n mean_s log p(y_n | f_s), from `log_p` (S, N): the "NLL" of the paper.

    E_q is outside the logarithm, so this is never below `nll` of the averaged probabilities.

    >>> round(expected_nll(np.log([[0.9, 0.5], [0.7, 0.5]])), 4)
    0.4621
    """
    return float(-_numbers("log_p", log_p, ndim=(2,)).mean())


def expected_gaussian_nll(
    y: ArrayLike, mean: ArrayLike, var: ArrayLike, noise_var: float | ArrayLike
) -> float:
    """mean_nt ½ log 2πσ² + ((y − m)² + v) / 2σ²  =  −E log N(y; f, σ²) under f ~ N(m, v).

    `var` is the latent v ≥ 0; `noise_var` is σ², a number, or (T,) with one value per output.

    >>> round(expected_gaussian_nll([1.0], [1.0], [0.5], 0.5), 4)
    1.0724
    """
    target, m, v = _regression(y=y, mean=mean, var=var)
    noise = _finite("noise_var", np.atleast_1d(noise_var), ndim=(1,))
    if noise.shape not in ((1,), target.shape[1:]):
        raise ValueError(f"shapes must agree: noise_var {noise.shape}, y {target.shape}")
    _require("var", v, v >= 0, "at least 0")
    _require("noise_var", noise, noise > 0, "positive")
    return float(np.mean(0.5 * np.log(2 * np.pi * noise) + ((target - m) ** 2 + v) / (2 * noise)))


def brier(probs: ArrayLike, y: ArrayLike) -> float:
    """mean_n Σ_c (p_nc − 1[y_n = c])²: the sum over classes, in [0, 2], not halved.

    >>> round(brier([[0.9, 0.1], [0.3, 0.7]], [0, 1]), 4)
    0.1
    """
    p, label = _classification(probs, y)
    return float(((p - np.eye(p.shape[1])[label]) ** 2).sum(1).mean())


def ece(probs: ArrayLike, y: ArrayLike, n_bins: int = 15) -> float:
    """Σ_b |B_b|/N · |accuracy(B_b) − confidence(B_b)|, bins (b/n_bins, (b+1)/n_bins] of max_c p_c.

    >>> round(ece([[0.9, 0.1], [0.3, 0.7]], [0, 1]), 4)
    0.2
    """
    p, label = _classification(probs, y)
    if n_bins < 1:
        raise ValueError(f"n_bins must be at least 1, got {n_bins}")
    confidence, correct = p.max(1), p.argmax(1) == label
    edges = np.linspace(0, 1, n_bins + 1)[1:-1]
    gap = np.bincount(np.digitize(confidence, edges, right=True), weights=correct - confidence)
    return float(np.abs(gap).sum() / len(p))


def entropy(probs: ArrayLike) -> Array:
    """−Σ_c p_c log p_c of each row, with 0 log 0 = 0; shape (N,).

    >>> entropy([[0.5, 0.5], [1.0, 0.0]]).round(4).tolist()
    [0.6931, 0.0]
    """
    return np.asarray(entr(_probabilities(probs)).sum(1), dtype=np.float64)


def auroc(score_in: ArrayLike, score_out: ArrayLike) -> float:
    """P(out > in) + ½ P(out = in): the area under the ROC curve, OOD (high scores) positive.

    >>> auroc([0.1, 0.2, 0.3], [0.3, 0.9])
    0.9166666666666666
    """
    inside, outside = np.sort(_numbers("score_in", score_in)), _numbers("score_out", score_out)
    below = np.searchsorted(inside, outside, side="left")
    not_above = np.searchsorted(inside, outside, side="right")
    return float(np.mean(below + not_above) / (2 * len(inside)))


def aupr(score_in: ArrayLike, score_out: ArrayLike) -> float:
    """Σ_k (R_k − R_{k−1}) P_k over thresholds k: average precision, OOD (high scores) positive.

    Its value under chance is the share of OOD rows. Tied scores are one threshold.

    >>> round(aupr([0.1, 0.2, 0.3], [0.3, 0.9]), 4)
    0.8333
    """
    inside, outside = _numbers("score_in", score_in), _numbers("score_out", score_out)
    thresholds, counts = np.unique(outside, return_counts=True)
    true = len(outside) - np.searchsorted(np.sort(outside), thresholds)  # OOD rows ≥ threshold
    false = len(inside) - np.searchsorted(np.sort(inside), thresholds)
    return float((counts / len(outside) * true / (true + false)).sum())


def fpr95(score_in: ArrayLike, score_out: ArrayLike) -> float:
    """P(in ≥ t) at the largest threshold t with P(out ≥ t) ≥ 0.95, OOD (high scores) positive.

    >>> fpr95([0.1, 0.2, 0.3, 0.4], [0.3, 0.9])
    0.5
    """
    inside, outside = _numbers("score_in", score_in), np.sort(_numbers("score_out", score_out))
    accepted = -(-95 * len(outside) // 100)  # ⌈0.95 N⌉ in integers
    return float(np.mean(inside >= outside[len(outside) - accepted]))


def rmse(y: ArrayLike, mean: ArrayLike) -> float:
    """√ mean_nt (y − m)².

    >>> round(rmse([0.0, 1.0], [1.0, 1.0]), 4)
    0.7071
    """
    target, m = _regression(y=y, mean=mean)
    return float(np.sqrt(np.mean((target - m) ** 2)))


def gaussian_nll(y: ArrayLike, mean: ArrayLike, var: ArrayLike) -> float:
    """mean_nt ½ log 2πv + (y − m)² / 2v  =  −log N(y; m, v), v the predictive variance with noise.

    >>> round(gaussian_nll([0.0], [0.0], [1.0]), 4)
    0.9189
    """
    target, m, v = _regression(y=y, mean=mean, var=var)
    _require("var", v, v > 0, "positive")
    return float(np.mean(0.5 * np.log(2 * np.pi * v) + (target - m) ** 2 / (2 * v)))


def crps_gaussian(y: ArrayLike, mean: ArrayLike, var: ArrayLike) -> float:
    """mean_nt σ (z (2Φ(z) − 1) + 2φ(z) − 1/√π), z = (y − m)/σ, σ² = var: ∫ (F(x) − 1[x ≥ y])² dx.

    >>> round(crps_gaussian([0.0], [0.0], [1.0]), 4)
    0.2337
    """
    target, m, v = _regression(y=y, mean=mean, var=var)
    _require("var", v, v > 0, "positive")
    sigma = np.sqrt(v)
    z = (target - m) / sigma
    phi = np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)
    return float(np.mean(sigma * (z * (2 * ndtr(z) - 1) + 2 * phi - 1 / np.sqrt(np.pi))))


def coverage(y: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> float:
    """mean_nt 1[l ≤ y ≤ u].

    >>> coverage([0.0, 3.0], [-1.0, -1.0], [1.0, 1.0])
    0.5
    """
    target, low, high = _interval(y, lower, upper)
    return float(np.mean((low <= target) & (target <= high)))


def interval_score(y: ArrayLike, lower: ArrayLike, upper: ArrayLike, alpha: float) -> float:
    """mean_nt (u − l) + 2/α (l − y)₊ + 2/α (y − u)₊ for central 1 − α intervals; lower is better.

    >>> interval_score([0.0, 3.0], [-1.0, -1.0], [1.0, 1.0], alpha=0.5)
    6.0
    """
    target, low, high = _interval(y, lower, upper)
    if not 0 < alpha < 1:
        raise ValueError(f"alpha must lie in (0, 1), got {alpha}")
    outside = np.maximum(low - target, 0) + np.maximum(target - high, 0)
    return float(np.mean(high - low + 2 / alpha * outside))


class RiskCoverage(NamedTuple):
    """Risk (N,) of the k most certain rows against coverage (N,) = k/N, k = 1…N."""

    coverage: Array
    risk: Array


def risk_coverage(loss: ArrayLike, uncertainty: ArrayLike) -> RiskCoverage:
    """risk_k = mean loss of the k rows of least uncertainty, coverage_k = k/N.

    Rows of equal uncertainty share their mean loss: the expected curve when ties break at random.

    >>> risk_coverage([0.0, 4.0, 2.0], [0.1, 0.9, 0.5]).risk.tolist()
    [0.0, 1.0, 2.0]
    """
    losses = _finite("loss", loss, ndim=(1,))
    scores = _numbers("uncertainty", uncertainty)
    _same_shape(loss=losses, uncertainty=scores)
    _, group = np.unique(scores, return_inverse=True)
    shared = np.bincount(group, weights=losses) / np.bincount(group)
    k = np.arange(1, len(losses) + 1)
    return RiskCoverage(coverage=k / len(k), risk=np.cumsum(shared[np.sort(group)]) / k)


def aurc(loss: ArrayLike, uncertainty: ArrayLike) -> float:
    """mean_k risk_k over k = 1…N: the area under the risk-coverage curve.

    >>> aurc([0.0, 4.0, 2.0], [0.1, 0.9, 0.5])
    1.0
    """
    return float(risk_coverage(loss, uncertainty).risk.mean())


def _classification(probs: ArrayLike, y: ArrayLike) -> tuple[Array, NDArray[np.int64]]:
    p, label = _probabilities(probs), np.asarray(y)
    if label.ndim != 1:
        raise ValueError(f"y must have 1 dimension(s), got shape {label.shape}")
    if label.dtype.kind not in "iub":
        raise ValueError(f"y must hold integer class labels, got dtype {label.dtype}")
    _same_shape(probs=p[:, 0], y=label)
    inside = (label >= 0) & (label < p.shape[1])
    _require("y", label, inside, f"a class of probs, 0 to {p.shape[1] - 1}")
    return p, label.astype(np.int64)


def _probabilities(probs: ArrayLike) -> Array:
    p = _finite("probs", probs, ndim=(2,))
    _require("probs", p, p >= 0, "at least 0 (logits need a softmax)")
    total = p.sum(1)  # half precision is off by a few 1e-4
    _require("Σ_c probs", total, np.abs(total - 1) < 1e-3, "1 (logits need a softmax)")
    return p


def _regression(**arrays: ArrayLike) -> tuple[Array, ...]:
    checked = {name: _finite(name, array, ndim=(1, 2)) for name, array in arrays.items()}
    _same_shape(**checked)  # (N,) − (N, 1) would be (N, N)
    return tuple(checked.values())


def _interval(y: ArrayLike, lower: ArrayLike, upper: ArrayLike) -> tuple[Array, Array, Array]:
    target = _finite("y", y, ndim=(1, 2))
    low, high = _numbers("lower", lower, ndim=(1, 2)), _numbers("upper", upper, ndim=(1, 2))
    _same_shape(y=target, lower=low, upper=high)
    _require("lower", low, low <= high, "at most upper")
    return target, low, high


def _finite(name: str, values: ArrayLike, ndim: tuple[int, ...]) -> Array:
    array = _numbers(name, values, ndim)
    _require(name, array, np.isfinite(array), "finite")
    return array


def _numbers(name: str, values: ArrayLike, ndim: tuple[int, ...] = (1,)) -> Array:
    """Values as float64, not empty and free of NaN; infinite ones have their place in ranks."""
    array = np.asarray(values, dtype=np.float64)
    if array.ndim not in ndim:
        wanted = " or ".join(map(str, ndim))
        raise ValueError(f"{name} must have {wanted} dimension(s), got shape {array.shape}")
    if array.size == 0:
        raise ValueError(f"{name} is empty: shape {array.shape}")
    _require(name, array, ~np.isnan(array), "a number")
    return array


def _require(name: str, array: NDArray[Any], holds: NDArray[np.bool_], what: str) -> None:
    if not np.all(holds):
        at = tuple(np.argwhere(~holds)[0].tolist())
        raise ValueError(f"{name} must be {what}: {name}{list(at)} = {array[at]}")


def _same_shape(**arrays: NDArray[Any]) -> None:
    if len({array.shape for array in arrays.values()}) > 1:
        shapes = ", ".join(f"{name} {array.shape}" for name, array in arrays.items())
        raise ValueError(f"shapes must agree: {shapes}")

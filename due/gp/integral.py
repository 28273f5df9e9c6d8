"""The integral over one dimension by which `due.gp.softmax` has its expectations.

With F_c the distribution function of f_c + g_c, a normal and Gumbel noise, and for any number of
classes,

    E[softmax(f)_c] = ∫ F_c' Π_{j≠c} F_j dx,    E[log Σ_c exp f_c] = E[max_c (f_c + g_c)] − γ.

A mixture of normals in place of the Gumbel distribution makes F_c a sum of Φs. A trapezoid rule
sums over nodes x that lie closest where the maximum begins, because what is sharp in the F_c above
that point is sharp near it. Classes are sorted first, so permuting them permutes the answer to the
last bit. Arrays, of numpy or of torch, are (classes, rows) or (classes, nodes, rows).
"""

from math import log, pi, sqrt
from typing import NamedTuple

import numpy as np
import torch

from due.gp.arrays import NUMPY, Array, Library, logsumexp, softplus

GAMMA = 0.5772156649015329  # Euler's, the mean of a Gumbel variable
GUMBEL = (  # weight, mean, standard deviation: −log F is e⁻ˣ within 0.4 % (rms) on −2 < x < 10
    (0.19317346801724533, -0.6659193297768875, 0.485602195422139),
    (0.40848980490423525, 0.18810533540427923, 0.6584253466639517),
    (0.2732923943330744, 1.1600087099604965, 0.9104356348014458),
    (0.09935988300581797, 2.23010165565497, 1.263508131856331),
    (0.0230922826344587, 3.390470971981423, 1.751031421723917),
    (0.0025921671051684215, 4.641320905010253, 2.5175308262703897),
)
NODES = 24
LOGISTIC = 1 / 1.702**2  # Φ(x) ≈ 1 / (1 + exp(−1.702 x))
FLOOR = 1e-30  # of a distribution function, so that float32 holds its logarithm
RARE = 5.0  # a class that stays so far below the largest has a closed form
SKIP = 4.0  # classes that stay so far below it are small parts of a sum, and taken together
FEW, LEAST = 32, 8  # classes: with fewer all are integrated over, and never fewer than these


class Constants(NamedTuple):
    """Of the mixture of normals, (6, 1, 1, 1), and of the nodes, (…, 1)."""

    half: Array  # weights
    density: Array  # at the centres, times the standard deviations and √2
    shift: Array
    var: Array
    steps: Array
    trials: Array  # where the range may begin


WEIGHT, CENTRE, STD = np.array(GUMBEL).T[..., None, None, None]
IN_FLOAT64 = Constants(
    WEIGHT / 2,
    WEIGHT / sqrt(pi),
    -CENTRE,
    STD**2,
    np.linspace(0, 1, NODES)[:, None],
    np.arange(1, 8)[:, None] / 10,
)
IN_FLOAT32 = Constants(*(part.astype(np.float32) for part in IN_FLOAT64))
IN_TORCH = Constants(*(torch.from_numpy(part) for part in IN_FLOAT64))


def integrate(
    lib: Library,
    mean: Array,
    var: Array,
    curved: bool = True,
    alike: bool = False,
    single: bool = False,
) -> list[Array]:
    """E[p] of p = softmax(f), f_c ~ N(mean_c, var_c), all (T, N), in a list.

    `curved` adds E[p (1 − p)] / 2 and E[log Σ exp f], (1, N). `alike` takes all rows at once, and
    integrates over all classes of each, so that the operations do not depend on the rows.
    `single` computes in float32.
    """
    top = lib.largest(mean, 0)
    mean = mean - top
    if single:
        mean, var = lib.single(mean), lib.single(var)
    keys = (var, -mean) if len(mean) < FEW else (var, -mean, -_eager(mean, var))
    order = lib.order(*keys)
    mean, var = lib.take(mean, order), lib.take(var, order)
    of_rows = _of_block if alike else _of_groups
    p, *others = of_rows(lib, mean, var, len(mean), curved)
    if not curved:
        return [lib.put(p, order)]
    curvature, log_sum = others
    return [lib.put(p, order), lib.put(curvature, order), log_sum + top]


def _of_groups(lib: Library, mean: Array, var: Array, T: int, curved: bool) -> list[Array]:
    """Rows that have about as many classes to integrate over together."""
    if T < FEW or not mean.shape[1]:
        return _of_blocks(lib, mean, var, T, curved)
    sizes = np.array([_rounded(n, T) for n in _matter(lib, mean, var).sum(0).tolist()])
    groups = {n: np.flatnonzero(sizes == n) for n in np.unique(sizes).tolist()}
    found = [
        _of_blocks(lib, lib.columns(mean, rows), lib.columns(var, rows), n, curved)
        for n, rows in groups.items()
    ]
    back = np.concatenate(list(groups.values())).argsort()
    return [lib.columns(lib.join(parts, -1), back) for parts in zip(*found, strict=True)]


def _rounded(n: int, T: int) -> int:
    """Up to a power of two, at least LEAST and at most T."""
    return min(max(LEAST, 1 << (n - 1).bit_length()), T)


def _of_blocks(lib: Library, mean: Array, var: Array, n: int, curved: bool) -> list[Array]:
    """Few rows at a time."""
    N, rows = mean.shape[1], max(2, lib.block // n)
    if rows >= N:
        return _of_block(lib, mean, var, n, curved)
    parts = [slice(first, first + rows) for first in range(0, N, rows)]
    blocks = [(lib.columns(mean, part), lib.columns(var, part)) for part in parts]
    found = [_of_block(lib, *block, n, curved) for block in blocks]
    return [lib.join(parts, -1) for parts in zip(*found, strict=True)]


def _of_block(lib: Library, mean: Array, var: Array, n: int, curved: bool) -> list[Array]:
    """By integration over the first n classes, and over the sum of the others as one more."""
    m, v = (mean, var) if n == len(mean) else _lumped(lib, mean, var, n)
    x, dx, k, low = _nodes(lib, lib.fixed(m), lib.fixed(v))
    blurred = lib.maximum(v, 0.81 * dx[0] * dx[0] - 0.81)  # what is too sharp for the nodes
    F, slope, *bend = _distribution(lib, x - m[:, None], blurred[:, None], curved)
    H = lib.product(F, 0) * dx  # of the maximum
    share = H / F
    slope = slope * share  # F' Π_{j≠c} F_j
    inverse = lib.total(lib.exp(lib.at_most(-x, 80.0)) * lib.total(slope, 0), 0)
    sums = lib.total(slope, 1)  # (n, N)
    by_tail = lib.exp(lib.at_most(mean + var / 2, 30.0))  # E[exp f]
    closed = by_tail * inverse  # times E[1 / Σ exp f]
    rare = _rare(lib, mean, var, low, n)
    p = lib.where(rare, closed, _all(lib, sums[:n], mean))
    p = p / lib.total(p, 0)
    if not curved:
        return [p]
    mass = lib.total(sums, 0)  # 1 up to about 3e-4
    closed = closed / mass
    curvature = _all(lib, lib.total(bend[0] * share, 1)[:n] / mass, mean)
    rest = dx[-1] * k / (12 * (NODES - 1))  # the error at the end
    log_sum = rest + x[-1] - lib.total(H, 0) + H[-1] / 2 - GAMMA
    return [p, lib.where(rare, closed * (1 - closed) / 2, curvature), log_sum[None]]


def _distribution(lib: Library, away: Array, var: Array, curved: bool) -> list[Array]:
    """F_c, its slope F_c' and if asked for −F_c'' / 2 at x = mean + away, each (n, nodes, N)."""
    normals, (n, _, N) = _constants(lib, away), away.shape
    r = lib.sqrt(0.5 / (var + normals.var))  # (6, n, 1, N)
    shift, scaled = normals.shift * r, normals.density * r
    at_once = len(GUMBEL) if lib.few and n * N <= lib.few else 1
    sums: list[Array] = []
    for c in range(0, len(GUMBEL), at_once):
        own = slice(c, c + at_once)
        z = away * r[own] + shift[own]
        height = lib.bell(z) * scaled[own]
        parts = [lib.erf(z) * normals.half[own], height]
        if curved:
            parts.append(height * z * r[own])
        totals = [lib.total(part, 0) for part in parts]
        sums = [a + b for a, b in zip(sums, totals, strict=True)] if sums else totals
    return [lib.at_least(sums[0] + 0.5, FLOOR), *sums[1:]]


def _nodes(lib: Library, mean: Array, var: Array) -> tuple[Array, Array, Array, Array]:
    """Nodes x and weights dx, (nodes, N), their k, and where they may begin, (N,).

    x = low + a (exp(k t) − 1) for t in [0, 1], where k is small if the range is. Where
    they may begin, one class alone says that the maximum hardly ever is lower; all say more.
    """
    T, constants = len(mean), _constants(lib, mean)
    lowest = lib.largest(mean - lib.sqrt(18.5 * var + 5.8), 0)
    high = lib.largest(mean + lib.sqrt((16 + 2 * log(T)) * var + (log(T) + 8) ** 2), 0)
    trial = lowest + (high - lowest) * constants.trials  # (trials, N)
    z = ((mean + GAMMA)[:, None] - trial) / lib.sqrt(LOGISTIC * var + LOGISTIC * pi**2 / 6)[:, None]
    minus_log_H = lib.total(lib.log1p(lib.exp(lib.at_most(z, 30.0))), 0)  # roughly
    low = lib.largest(lib.where(minus_log_H > 14, trial, lowest), 0)
    span = high - low
    k = lib.at_least(1.38 * lib.log(span) - 3.65, 0.1)  # the first dx is about 0.8, close enough
    grown = lib.exp(k * constants.steps)
    beyond = grown - 1
    a = span / beyond[-1]
    return low + a * beyond, (a * k / (NODES - 1)) * grown, k, lowest


def _rare(lib: Library, mean: Array, var: Array, low: Array, n: int) -> Array:
    """Which classes have a closed form, E[p] = E[exp f_c] E[1 / Σ exp f].

    They are far below the maximum, where the mixture of normals is not made for what they need:
    the tail of the Gumbel distribution. f_c hardly ever is higher than mean + var + 3 √var under a
    density times exp f_c.
    """
    rare = mean + var + 3 * lib.sqrt(var) < low - RARE
    if n < len(mean):
        rare = rare | ~_matter(lib, mean, var)  # also of the first n: equal classes, equal answers
    return rare


def _eager(mean: Array, var: Array) -> Array:
    """The classes that matter most have the largest."""
    return mean + 1.5 * var


def _matter(lib: Library, mean: Array, var: Array) -> Array:
    """Which classes may have a probability above e^(−SKIP), (T, N)."""
    return _eager(mean, var) > _largest(lib, mean, var) - SKIP


def _largest(lib: Library, mean: Array, var: Array) -> Array:
    """−log E[(Σ exp f)⁻³] / 3 or less, (N,): of one class, or of a sum taken for log-normal."""
    total = logsumexp(lib, mean + var / 2)
    spread = softplus(lib, logsumexp(lib, 2 * (mean + var)) - 2 * total)
    return lib.maximum(lib.largest(mean - 1.5 * var, 0), total - 2 * spread)


def _lumped(lib: Library, mean: Array, var: Array, n: int) -> tuple[Array, Array]:
    """The first n classes, and Σ exp f_c of the others as one log-normal with its two moments.

    Of a sum of small independent parts, what the third moment says is lost: at most e^(−2 SKIP)
    times its share of the whole, over 3.
    """
    m, v = mean[n:], var[n:]
    first = lib.at_least(lib.total(lib.exp(m + v / 2), 0), 1e-15)
    squares = lib.exp(2 * (m + v)) - lib.exp(2 * m + v)
    second = lib.total(lib.at_least(squares, 0.0), 0)
    spread = lib.log1p(second / first / first)
    lump = lib.log(first) - spread / 2
    return lib.join([mean[:n], lump[None]], 0), lib.join([var[:n], spread[None]], 0)


def _all(lib: Library, first: Array, like: Array) -> Array:
    """Of all classes, 0 beyond the first ones."""
    missing = like[len(first) :]
    return lib.join([first, 0 * missing], 0) if len(missing) else first


def _constants(lib: Library, like: Array) -> Constants:
    """In the type of an array."""
    if lib is NUMPY:
        return IN_FLOAT32 if like.dtype == np.float32 else IN_FLOAT64
    return Constants(*(part.to(like) for part in IN_TORCH))

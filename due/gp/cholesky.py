"""Cholesky factor of a correlation matrix: L Lᵀ = K + j I with the smallest jitter j that works."""

import warnings

import torch
from jaxtyping import Float
from numpy.linalg import LinAlgError
from torch import Tensor

LARGEST_JITTER = 1e-2


class JitterWarning(UserWarning):
    """A kernel matrix was singular to working precision and needed more jitter than asked for."""


def cholesky(K: Float[Tensor, "T M M"], jitter: float) -> Float[Tensor, "T M M"]:
    """Lower factor of K + j I: j = jitter, then ten times more after each failure.

    K has a unit diagonal, so j is a share of the prior variance. Growth is announced by a
    `JitterWarning`; past 0.01 the matrix is no kernel matrix and a `LinAlgError` says so. Inside
    `torch.compile` a failure gives NaN: `due.train` repeats such a step without it.
    """
    eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    L, info = torch.linalg.cholesky_ex(K + jitter * eye)
    if torch.compiler.is_compiling():  # a compiled graph cannot branch: it answers NaN instead
        return L.masked_fill((info > 0)[:, None, None], torch.nan)
    return L if not info.any() else _grow(K, eye, jitter)


def _grow(K: Tensor, eye: Tensor, jitter: float) -> Tensor:
    if not torch.isfinite(K).all():
        raise LinAlgError(
            "the kernel matrix holds NaN or infinite entries: the features or the kernel's "
            "parameters are not finite; lower the learning rate and check the inputs"
        )
    grown = max(jitter, 1e-12) * 10
    while grown <= LARGEST_JITTER:
        L, info = torch.linalg.cholesky_ex(K + grown * eye)
        if not info.any():
            warnings.warn(
                f"kernel matrix of size {len(eye)} is singular: jitter grew from {jitter:.0e} to "
                f"{grown:.0e} of the prior variance (inducing points almost coincide)",
                JitterWarning,
                stacklevel=2,
            )
            return L
        grown *= 10
    raise LinAlgError(
        f"kernel matrix of size {len(eye)} is not positive definite even with jitter "
        f"{LARGEST_JITTER:.0e} of the prior variance"
    )

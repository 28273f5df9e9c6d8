"""Cholesky factor of a correlation matrix: L Lᵀ = K + j I with the smallest jitter j that works."""

import warnings
from typing import Any

import torch
from jaxtyping import Float
from numpy.linalg import LinAlgError
from torch import Tensor

LARGEST_JITTER = 1e-2
SMALL = 64  # rows of a triangle that is inverted at once


class JitterWarning(UserWarning):
    """A kernel matrix was singular to working precision and needed more jitter than asked for."""


def cholesky(K: Float[Tensor, "T M M"], jitter: float) -> Float[Tensor, "T M M"]:
    """Lower factor of K + j I: j = jitter, then ten times more after each failure.

    K has a unit diagonal, so j is a share of the prior variance. Growth is announced by a
    `JitterWarning`; past 0.01 the matrix is no kernel matrix and a `LinAlgError` says so. Inside
    `torch.compile` a failure gives NaN: `due.training.fit` repeats such a step without it.
    """
    eye = torch.eye(K.shape[-1], dtype=K.dtype, device=K.device)
    L, info = torch.linalg.cholesky_ex(K + jitter * eye)
    if torch.compiler.is_compiling():  # a compiled graph cannot branch: it answers NaN instead
        return L.masked_fill((info > 0)[:, None, None], torch.nan)
    return L if not info.any() else _grow(K, eye, jitter)


def inverse_of_lower(L: Float[Tensor, "M M"]) -> Float[Tensor, "M M"]:
    """L⁻¹ by halves, [[A, 0], [C, B]]⁻¹ = [[A⁻¹, 0], [−B⁻¹ C A⁻¹, B⁻¹]]: less work than for I."""
    half = len(L) // 2
    if half < SMALL:
        eye = torch.eye(len(L), dtype=L.dtype, device=L.device)
        return torch.linalg.solve_triangular(L, eye, upper=False)
    A, C, B = L[:half, :half], L[half:, :half], L[half:, half:]
    A_inv, B_inv = inverse_of_lower(A), inverse_of_lower(B)
    inverse = torch.zeros_like(L)
    inverse[:half, :half], inverse[half:, half:] = A_inv, B_inv
    inverse[half:, :half] = -B_inv @ (C @ A_inv)
    return inverse


def whiten(K: Float[Tensor, "T M P"], jitter: float) -> Float[Tensor, "T M N"]:
    """L⁻¹ K₂ for K = [K₁ K₂], K₁ square and L = `cholesky(K₁, jitter)`."""
    return _Whiten.apply(K, jitter)[0]  # type: ignore[no-untyped-call]


class _Whiten(torch.autograd.Function):
    """A = L⁻¹ K₂, and L; an output, so that the backward can be differentiated too.

    With X symmetric, its lower triangle that of Lᵀ ∂L − ∂A Aᵀ: ∂K₁ = ½ L⁻ᵀ X L⁻¹, ∂K₂ = L⁻ᵀ ∂A.
    """

    @staticmethod
    def forward(ctx: Any, K: Tensor, jitter: float) -> tuple[Tensor, Tensor]:
        M = K.shape[-2]
        L = cholesky(K[..., :M], jitter)
        A = torch.linalg.solve_triangular(L, K[..., M:], upper=False)
        ctx.save_for_backward(A, L)
        ctx.set_materialize_grads(False)
        return A, L

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, None]:
        (A, L), (grad_A, grad_L) = ctx.saved_tensors, grads
        grad_A = torch.zeros_like(A) if grad_A is None else grad_A
        X = grad_A @ A.mT if grad_L is None else grad_A @ A.mT - L.mT @ grad_L
        X = -0.5 * (X.tril() + X.tril(-1).mT)
        solved = torch.linalg.solve_triangular(L.mT, torch.cat([X, grad_A], -1), upper=True)
        X, grad_2 = solved.tensor_split([L.shape[-1]], -1)
        grad_1 = torch.linalg.solve_triangular(L, X, upper=False, left=False)
        return torch.cat([grad_1, grad_2], -1), None


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

"""Whitened inducing-point GP, Hensman et al. (2015) with the whitening of Matthews (2017).

With k = s κ, κ(Z, Z) = L Lᵀ, u = μ + √s L v, q(v_t) = N(m_t, S_t) and A = L⁻¹ κ(Z, h):
q(f(h)) = N(μ + √s Aᵀ m,  s (κ(h, h) − Aᵀ A + Aᵀ S A)).
The algebra is float64 whatever the features.
"""

from typing import Any, TypeAlias

import torch
from jaxtyping import Float
from torch import Tensor, nn

from due.gp.cholesky import whiten
from due.gp.kernels import Kernel, inverse_softplus, squared_distance, squared_distance_to_first
from due.gp.shapes import Features, Scalar, Values

Inducing: TypeAlias = Float[Tensor, "M J"] | None


class InducingGP(nn.Module):
    """T independent GPs on features, with M inducing inputs Z in common.

    Parameters
    ----------
    Z
        Inducing inputs, in feature space.
    T
        Number of outputs; each has its own mean, kernel scales and q(u).
    lengthscale
        Initial length scale of every kernel.
    kernel
        Kind of kernel, see `due.gp.Kernel`.
    shared_kernel
        One length scale and output scale for all outputs: one Cholesky factor instead of T.
    shared_covariance
        One S for all outputs, which with a shared kernel gives them one variance: M² values
        instead of T M², so that a thousand outputs are affordable.
    jitter
        Added to the diagonal of κ(Z, Z).
    """

    def __init__(
        self,
        Z: Float[Tensor, "M J"],
        T: int = 1,
        lengthscale: float = 1.0,
        kernel: str = "rbf",
        shared_kernel: bool = False,
        shared_covariance: bool = False,
        jitter: float = 1e-6,
    ) -> None:
        super().__init__()
        if shared_covariance and not shared_kernel:
            raise ValueError("shared_covariance=True needs shared_kernel=True")
        M = len(Z)
        self.T, self.shared_kernel, self.jitter = T, shared_kernel, jitter
        self.shared_covariance = shared_covariance
        self.kernel = Kernel(kernel, 1 if shared_kernel else T, lengthscale)
        self.Z = nn.Parameter(Z.detach().clone().double())
        self.mu = nn.Parameter(torch.zeros(T, dtype=torch.float64))
        self.m = nn.Parameter(torch.zeros(T, M, dtype=torch.float64))
        # L_S: below the diagonal as it is, on the diagonal its logarithm
        covariances = 1 if shared_covariance else T
        self.raw_L_S = nn.Parameter(torch.zeros(covariances, M, M, dtype=torch.float64))

    @property
    def L_S(self) -> Float[Tensor, "T M M"]:
        """Lower factor of S, with a positive diagonal."""
        return _LowerFactor.apply(self.raw_L_S.double())  # type: ignore[no-untyped-call]

    def forward(self, h: Features) -> tuple[Values, Values]:
        """Mean and variance of each q(f_t(h_n)); inputs are independent of one another."""
        return self._marginal(self.project(h), self.L_S, outward(h))

    def with_kl(self, h: Features, Z: Inducing = None) -> tuple[Values, Values, Scalar]:
        """Mean, variance and KL at once, for training: L_S is formed only once."""
        L_S = self.L_S
        return *self._marginal(self.project(h, Z), L_S, outward(h)), self._kl(L_S)

    def joint(self, h: Features) -> tuple[Values, Float[Tensor, "T N N"]]:
        """Mean and covariance of each q(f_t(h_1), …, f_t(h_N))."""
        A = self.project(h)
        B = times(self.L_S.mT, A)
        centre = self.Z.detach().double().mean(0)
        prior = self.kernel.correlation(squared_distance(h, h, centre)) - A.mT @ A
        cov = self.kernel.outputscale[:, None, None] * (prior + B.mT @ B)
        return self._mean(A).to(outward(h)), cov.expand(self.T, -1, -1).to(outward(h))

    def explained(self, h: Features) -> Values:
        """Share of the prior variance that the data has removed: Aᵀ (I − S) A, in [0, 1]."""
        A = self.project(h)
        removed = column_squares(A) - column_squares(times(self.L_S.mT, A))
        return removed.mT.clamp(0, 1).expand(-1, self.T).to(outward(h))

    def kl(self) -> Scalar:
        """KL(q(V) ‖ N(0, I)) = ½ Σ_t (tr S_t + m_tᵀ m_t − M − log|S_t|)."""
        return self._kl(self.L_S)

    def project(self, h: Features, Z: Inducing = None) -> Float[Tensor, "K M N"]:
        """A = L⁻¹ κ(Z, h), one for each kernel (K = T, or 1 if shared).

        Z may be given in place of the GP's own: features that are part of the graph.
        """
        Z = (self.Z if Z is None else Z).double()
        d2 = squared_distance_to_first(torch.cat([Z, h.to(Z)]), len(Z))  # (M + N, M)
        return whiten(self.kernel.correlation(d2).mT, self.jitter)  # from (K, M, M + N)

    @torch.no_grad()
    def place(self, Z: Float[Tensor, "M J"], lengthscale: float) -> None:
        """Put the inducing inputs and the length scale of every kernel where data say."""
        self.Z.copy_(Z)
        self.kernel.raw_lengthscale.copy_(inverse_softplus(lengthscale, self.kernel.T))

    @torch.no_grad()
    def temper(self, temperature: float) -> None:
        """Divide every f by the temperature."""
        s = self.kernel.outputscale / temperature**2
        self.kernel.raw_outputscale.copy_(inverse_softplus(s, self.kernel.T))
        self.mu.div_(temperature)

    def grow(self, Z: Float[Tensor, "M J"]) -> None:
        """Other inducing inputs, of another number; q(V) starts anew."""
        M, learned = len(Z), self.Z.requires_grad
        self.Z = nn.Parameter(Z.detach().clone().double(), requires_grad=learned)
        self.m = nn.Parameter(self.m.new_zeros(self.T, M))
        self.raw_L_S = nn.Parameter(self.m.new_zeros(len(self.raw_L_S), M, M))

    @torch.no_grad()
    def set_q(self, m: Float[Tensor, "T M"], L_S: Float[Tensor, "K M M"]) -> None:
        """Set q(V) to N(m, L_S L_Sᵀ), with one L_S per output or one for all."""
        diagonal = L_S.diagonal(dim1=-2, dim2=-1)
        flipped = L_S * diagonal.sign()[:, None]  # the same S, with a positive diagonal
        self.m.copy_(m)
        self.raw_L_S.copy_(flipped.tril(-1) + torch.diag_embed(diagonal.abs().log()))

    def _mean(self, A: Tensor) -> Tensor:
        scale = self.kernel.outputscale.sqrt()[:, None].to(A)
        return self.mu.to(A) + (scale * times(self.m[:, None].to(A), A)[:, 0]).mT  # (N, T)

    def _marginal(self, A: Tensor, L_S: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        prior = (1 - column_squares(A)).clamp_min(1e-12).to(dtype)  # (K, N), the only difference
        with torch.autocast(A.device.type, enabled=False):
            A = A.to(dtype)
            var = prior + column_squares(times(L_S.mT.to(dtype), A))  # (T, N)
            var = self.kernel.outputscale[:, None].to(dtype) * var
            mean = self._mean(A)
            return mean, var.mT.expand_as(mean)

    def _kl(self, L_S: Tensor) -> Tensor:
        log_diagonal = self.raw_L_S.double().diagonal(dim1=-2, dim2=-1)
        each = self.T / len(L_S)  # outputs that have this S
        squares = each * L_S.square().sum() + self.m.double().square().sum()
        return 0.5 * (squares - self.m.numel()) - each * log_diagonal.sum()


class _LowerFactor(torch.autograd.Function):
    """The lower triangle as it is, and eˣ on the diagonal."""

    @staticmethod
    def forward(ctx: Any, raw: Tensor) -> Tensor:
        L = raw.tril()
        L.diagonal(dim1=-2, dim2=-1).exp_()
        ctx.save_for_backward(L)
        return L

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        (L,), grad = ctx.saved_tensors, grads[0].tril()
        grad.diagonal(dim1=-2, dim2=-1).mul_(L.diagonal(dim1=-2, dim2=-1))
        return grad


def times(W: Float[Tensor, "T R M"], A: Float[Tensor, "K M N"]) -> Float[Tensor, "T R N"]:
    """W_t A_t, or W_t A_1 in one product when all outputs share A."""
    if len(A) == len(W):
        return W @ A
    return (W.reshape(-1, W.shape[-1]) @ A[0]).unflatten(0, W.shape[:2])


def outward(h: Tensor) -> torch.dtype:
    """Dtype of answers about these features."""
    return torch.promote_types(h.dtype, torch.float32)  # bfloat16 features, float32 answers


def column_squares(A: Float[Tensor, "T M N"]) -> Float[Tensor, "T N"]:
    """‖a_n‖² of each column."""
    return torch.linalg.vecdot(A, A, dim=-2)

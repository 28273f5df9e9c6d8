"""Networks for vectors: h ← W₀ x + b₀, then `depth` blocks that each use one layer W h + b."""

from abc import abstractmethod
from typing import Any

from jaxtyping import Float
from torch import Tensor, nn


class FullyConnected(nn.Module):
    """Abstract: the layers; each final class says how its blocks use them."""

    def __init__(
        self, D: int, J: int = 128, depth: int = 4, activation: str = "relu", dropout: float = 0.0
    ):
        super().__init__()
        self.config: dict[str, Any] = dict(
            D=D, J=J, depth=depth, activation=activation, dropout=dropout
        )
        self.out_features = J
        self.first = nn.Linear(D, J)
        self.blocks = nn.ModuleList(nn.Linear(J, J) for _ in range(depth))
        self.activation = make_activation(activation)
        self.dropout = nn.Dropout(dropout)

    @abstractmethod
    def forward(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N J"]:
        """Features h of each row."""


class FCResNet(FullyConnected):
    """h ← h + dropout(act(W h + b)): constrained with c < 1, each block keeps distances."""

    def forward(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N J"]:
        """Features h of each row."""
        h = self.first(x)
        for block in self.blocks:
            h = h + self.dropout(self.activation(block(h)))
        return h


class FeedForward(FullyConnected):
    """h ← dropout(act(W h + b)): `FCResNet` without skip connections, may collapse distances."""

    def forward(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N J"]:
        """Features h of each row."""
        h = self.first(x)
        for block in self.blocks:
            h = self.dropout(self.activation(block(h)))
        return h


class PreactivationResNet(FullyConnected):
    """h ← h + W dropout(act(h)) + b, and act(h) at the end.

    The defaults are the encoder of the paper's treatment-effect experiment.
    """

    def __init__(
        self, D: int, J: int = 200, depth: int = 2, activation: str = "elu", dropout: float = 0.1
    ):
        super().__init__(D, J, depth, activation, dropout)

    def forward(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N J"]:
        """Features h of each row."""
        h = self.first(x)
        for block in self.blocks:
            h = h + block(self.dropout(self.activation(h)))
        return self.activation(h)


def make_activation(name: str) -> nn.Module:
    """The activation of that name; its slope is at most 1, so it keeps a layer's bound."""
    modules: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU}
    if name not in modules:
        raise ValueError(f"activation is {name!r}; choose one of {', '.join(modules)}")
    return modules[name]()

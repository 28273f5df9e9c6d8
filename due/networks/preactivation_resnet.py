"""Pre-activation ResNet: h ← W₀ x + b₀, `depth` times h ← h + W dropout(act(h)) + b; act(h)."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from due.networks.activations import Activation, make_activation


class PreactivationResNet(nn.Module):
    """The encoder of the paper's treatment-effect experiment: 3 layers of 200, ELU, dropout 0.1."""

    def __init__(
        self,
        D: int,
        J: int = 200,
        depth: int = 2,
        activation: Activation = "elu",
        dropout: float = 0.1,
    ):
        super().__init__()
        self.config: dict[str, Any] = {
            "D": D,
            "J": J,
            "depth": depth,
            "activation": activation,
            "dropout": dropout,
        }
        self.out_features = J
        self.first = nn.Linear(D, J)
        self.blocks = nn.ModuleList(nn.Linear(J, J) for _ in range(depth))
        self.activation = make_activation(activation)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*N D"]) -> Float[Tensor, "*N J"]:
        """Features h of each row."""
        h = self.first(x)
        for block in self.blocks:
            h = h + block(self.dropout(self.activation(h)))
        return self.activation(h)

"""Feed-forward network: h ← W₀ x + b₀, then `depth` times h ← dropout(act(W h + b))."""

from typing import Any

from jaxtyping import Float
from torch import Tensor, nn

from due.networks.activations import Activation, make_activation


class FeedForward(nn.Module):
    """The layers of `FCResNet` without its skip connections: nothing keeps distances."""

    def __init__(
        self,
        D: int,
        J: int = 128,
        depth: int = 4,
        activation: Activation = "relu",
        dropout: float = 0.0,
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
            h = self.dropout(self.activation(block(h)))
        return h

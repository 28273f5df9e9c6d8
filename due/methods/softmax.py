"""Softmax network: p(y = t | x) = softmax(W f(x) + b)_t, trained by cross-entropy."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy

from due.gp.shapes import Features, Inputs, Labels, PerRow, Values
from due.methods.method import Folded, MeanLoss, Plain


class SoftmaxOutput(MeanLoss, Folded):
    """Abstract: features and a linear output, by which `predict(x)` is p(y | x)."""

    def __init__(self, f: nn.Module, J: int, T: int) -> None:
        super().__init__()
        self.f, self.output, self.n_classes = f, nn.Linear(J, T), T

    def losses(self, x: Inputs, y: Labels) -> PerRow:
        """−log p(y_i | x_i)."""
        return cross_entropy(self.output(self.f(x)), y, reduction="none")

    def predict(self, x: Inputs) -> Values:
        """Class probabilities."""
        return self.probabilities(self.f(x))

    def probabilities(self, h: Features) -> Values:
        """Class probabilities from features."""
        return torch.softmax(self.output(h), -1)


class SoftmaxNetwork(SoftmaxOutput, Plain):
    """The network alone: `model(x, y)` is the loss, `model.predict(x)` is p(y | x)."""

    by_entropy = True

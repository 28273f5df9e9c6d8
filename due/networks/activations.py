"""Activations with slope at most 1, which keep a layer's Lipschitz bound."""

from typing import Literal, TypeAlias

from torch import nn

Activation: TypeAlias = Literal["relu", "elu"]


def make_activation(name: Activation) -> nn.Module:
    """The module of that name."""
    modules: dict[str, type[nn.Module]] = {"relu": nn.ReLU, "elu": nn.ELU}
    if name not in modules:
        raise ValueError(f"activation is {name!r}; choose one of {', '.join(modules)}")
    return modules[name]()

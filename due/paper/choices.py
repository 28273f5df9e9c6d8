"""Ablations of DUE in Table 3: one choice changed at a time, on the same seeds."""

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from due.estimators.cate import DUECATE, PAPER
from due.experiments.contender import Contender
from due.networks import PreactivationResNet
from due.paper import CATALOGUE
from due.paper.table3 import METHODS, NOTES, Table3, our_recipe
from due.paper.table3 import SMOKE as SMOKE_METHODS
from due.training import Recipe


class StartsInTrainMode(nn.Module):
    """The encoder with dropout on while Algorithm 1 places Z, as the authors' code has it."""

    def __init__(self, shape: Any) -> None:
        super().__init__()
        self.encoder, self.trained = PreactivationResNet(shape[0]), False

    def train(self, mode: bool = True) -> "StartsInTrainMode":
        """Record when training begins."""
        self.trained = self.trained or mode
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Features, with dropout before training as well."""
        self.encoder.dropout.train(self.training or not self.trained)
        return self.encoder(x)


def change(title: str, **settings: Any) -> Contender:
    """DUE's defaults with some settings changed."""
    return Contender(title, lambda seed: our_recipe(seed, **settings), METHODS["due"].version)


def change_paper(title: str, **settings: Any) -> Contender:
    """The paper's settings with some changed."""
    title, version = f"the paper's recipe, {title}", METHODS["due-paper"].version
    return Contender(title, lambda seed: DUECATE.paper(random_state=seed, **settings), version)


CHOICES: dict[str, Contender] = {
    "due": METHODS["due"],
    "due-paper": METHODS["due-paper"],
    "paper-text": change_paper(
        "its text's rate and epochs", recipe=replace(PAPER, head_lr=1e-3), epochs=750
    ),
    "paper-input": change_paper("t at the input", treatment="input"),
    "elbo": change("bound: stochastic ELBO, its rates, no finish", bound="elbo", recipe=PAPER),
    "one-scale": change("t: the features' length scale", own_scale=False),
    "input": change("t: at the input, its scale too", treatment="input", own_scale=False),
    "q": change("finish: q(U) only", finish="q"),
    "noise": change("finish: noise of held-out people", finish="noise"),
    "nothing": change("finish: nothing", finish="nothing"),
    "patience-60": change("patience 60, as DUECATE has it", recipe=Recipe(patience=60)),
    "slow": change("learning rates ÷ 4", lr=1e-3, recipe=Recipe(head_lr=4e-3)),
    "train-mode": change("start: in train mode", extractor=StartsInTrainMode),
    "inducing-25": change("25 inducing points", n_inducing=25),
    "inducing-200": change("200 inducing points", n_inducing=200),
    "free": change("no spectral norm", c=None),
}

SMOKE: dict[str, Contender] = {
    "due": SMOKE_METHODS["due"],
    "free": change("no spectral norm", epochs=3, n_inducing=10, c=None),
}

ARTEFACT = Table3(
    title=CATALOGUE["choices"].title,
    presets={"default": CHOICES, "smoke": SMOKE},
    notes=(NOTES[0], NOTES[2]),
)

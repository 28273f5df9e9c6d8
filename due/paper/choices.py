"""What each choice behind DUE's rows of Table 3 buys: changed in turn, on the same seeds."""

from typing import Any

from torch import Tensor

from due.estimators.cate import DUECATE
from due.networks import PreactivationResNet
from due.paper.table3 import METHODS, NOTES, Table3, our_recipe
from due.paper.trials import Recipe


class StartsInTrainMode(PreactivationResNet):
    """The encoder with dropout on while Algorithm 1 places Z, as the authors' code has it."""

    def __init__(self, shape: Any) -> None:
        super().__init__(shape[0])
        self.trained = False

    def train(self, mode: bool = True) -> "StartsInTrainMode":
        """Note when training begins."""
        self.trained = self.trained or mode
        super().train(mode)
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Features, with dropout before training as well."""
        self.dropout.train(self.training or not self.trained)
        return super().forward(x)


def change(title: str, **settings: Any) -> Recipe:
    """The default with something else."""
    return Recipe(title, lambda seed: our_recipe(seed, **settings), METHODS["due"].version)


def change_paper(title: str, **settings: Any) -> Recipe:
    """The paper's recipe with something else."""
    return Recipe(
        f"the paper's recipe, {title}",
        lambda seed: DUECATE.paper(random_state=seed, **settings),
        METHODS["due-paper"].version,
    )


CHOICES: dict[str, Recipe] = {
    "due": METHODS["due"],
    "due-paper": METHODS["due-paper"],
    "paper-text": change_paper("its text's rate and epochs", gp_lr=1e-3, epochs=750),
    "paper-input": change_paper("t at the input", treatment="input"),
    "elbo": change(
        "bound: stochastic ELBO, its rates, no finish",
        bound="elbo",
        batch_size=100,
        lr=1e-3,
        gp_lr=4e-3,
    ),
    "one-scale": change("t: the features' length scale", own_scale=False),
    "input": change("t: at the input, its scale too", treatment="input", own_scale=False),
    "q": change("finish: q(U) only", finish="q"),
    "noise": change("finish: noise of held-out people", finish="noise"),
    "nothing": change("finish: nothing", finish="nothing"),
    "patience-60": change("patience 60, as DUECATE has it", patience=60),
    "slow": change("learning rates ÷ 4", lr=1e-3, gp_lr=4e-3),
    "train-mode": change("start: in train mode", extractor=StartsInTrainMode),
    "inducing-25": change("25 inducing points", n_inducing=25),
    "inducing-200": change("200 inducing points", n_inducing=200),
    "free": change("no spectral norm", c=None),
}

SMOKE: dict[str, Recipe] = {
    "due": Recipe("DUE", lambda seed: DUECATE(epochs=3, n_inducing=10, random_state=seed)),
    "free": Recipe(
        "no spectral norm",
        lambda seed: DUECATE(epochs=3, n_inducing=10, c=None, random_state=seed),
    ),
}

ARTEFACT = Table3(
    title="What each choice buys on IHDP: DUE with something changed",
    presets={"default": CHOICES, "smoke": SMOKE},
    notes=(NOTES[0], NOTES[2]),
)

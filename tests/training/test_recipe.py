import re

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from due.gp import Gaussian, InducingGP
from due.methods.due import DUE
from due.methods.method import Plain
from due.methods.softmax import SoftmaxNetwork
from due.methods.treatment_due import TreatmentDUE
from due.networks import AppendTreatment
from due.training import Recipe, fit

from .toys import counted


def test_given_values_go_over_the_others():
    ours, theirs = Recipe(lr=0.1, epochs=3), Recipe(lr=0.2, batch_size=8)
    assert ours.over(theirs) == Recipe(lr=0.1, epochs=3, batch_size=8)
    assert ours.over(theirs).given() == {"lr": 0.1, "batch_size": 8, "epochs": 3}
    assert repr(ours) == "Recipe(lr=0.1, epochs=3)"


def test_a_complete_recipe_lacks_nothing_but_patience():
    whole = Recipe(lr=0.1).complete()
    assert [name for name, value in whole.get_params().items() if value is None] == ["patience"]
    assert whole.head_lr == 0.1
    assert Recipe(lr=0.1, head_lr=0.2).complete().head_lr == 0.2


@pytest.mark.parametrize(
    "wrong",
    [
        {"optimizer": "lbfgs"},
        {"schedule": "linear"},
        {"per": "batch"},
        {"precision": "fp8"},
        {"epochs": 0},
        {"epochs": 2.5},
        {"patience": 0},
        {"accumulate": 0},
        {"batch_size": 0},
        {"batch_size": True},
        {"batch_size": "some"},
        {"lr": 0.0},
        {"lr": float("nan")},
        {"lr": "0.1"},
        {"head_lr": -1.0},
        {"factor": 0.0},
        {"weight_decay": -1e-4},
        {"momentum": float("inf")},
        {"warm_up": -1},
        {"milestones": (0.5, 30)},
    ],
    ids=str,
)
def test_a_wrong_value_is_named(wrong):
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=re.escape(f"{name}={value!r}")):
        Recipe(**wrong).complete()


def test_the_budget_is_4000_steps_between_5_and_80_epochs():
    assert Recipe().budgeted(500) == Recipe(batch_size=64, epochs=80)
    assert Recipe().budgeted(20_000) == Recipe(batch_size=256, epochs=51)
    assert Recipe().budgeted(10**6) == Recipe(batch_size=1024, epochs=5)
    assert Recipe(batch_size="all").budgeted(500) == Recipe(batch_size="all", epochs=80)
    assert Recipe(batch_size=100, epochs=7).budgeted(500) == Recipe(batch_size=100, epochs=7)


# Groups of parameters


def names_by_rate(method: nn.Module) -> dict[float, set[str]]:
    recipe = Recipe(lr=0.1, head_lr=0.2).complete()
    optimizer = recipe.optimise(method)
    names = {id(parameter): name for name, parameter in method.named_parameters()}
    return {
        group["lr"]: {names[id(p)] for p in group["params"]} for group in optimizer.param_groups
    }


HEAD = {"gp.Z", "gp.mu", "gp.m", "gp.raw_L_S", "likelihood.raw_sigma2"}
KERNEL = {"gp.kernel.raw_lengthscale", "gp.kernel.raw_outputscale"}


def test_the_network_learns_at_lr_and_everything_else_at_head_lr():
    method = DUE(nn.Linear(3, 2), InducingGP(torch.randn(5, 2)), Gaussian())
    assert names_by_rate(method) == {0.1: {"f.weight", "f.bias"}, 0.2: HEAD | KERNEL}

    softmax = SoftmaxNetwork(nn.Linear(3, 2), 2, 4)
    assert names_by_rate(softmax)[0.2] == {"output.weight", "output.bias"}


def test_the_scale_of_the_treatment_learns_with_the_head():
    f = AppendTreatment(nn.Linear(3, 2), own_scale=True)
    method = TreatmentDUE(f, InducingGP(torch.randn(5, 3)), Gaussian())
    assert names_by_rate(method) == {
        0.1: {"f.f.weight", "f.f.bias"},
        0.2: HEAD | KERNEL | {"f.log_a"},
    }


def test_a_method_without_a_network_of_its_own_learns_at_lr():
    assert names_by_rate(nn.Linear(3, 2)) == {0.1: {"weight", "bias"}}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW), ("sgd", torch.optim.SGD)],
)
def test_optimisers(name, kind):
    recipe = Recipe(optimizer=name, weight_decay=0.3, momentum=0.9).complete()
    optimizer = recipe.optimise(nn.Linear(1, 1, bias=False))
    (group,) = optimizer.param_groups
    assert type(optimizer) is kind and group["weight_decay"] == 0.3
    assert group.get("momentum", 0.9) == 0.9


# Schedules: exactly those of torch

STEPS, EPOCHS = 3, 4  # 6 rows in batches of 2


def of_torch(length: int, schedule) -> list[float]:
    """Rates of a schedule that starts at 0.5 and moves `length` times."""
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.5)
    moving, rates = schedule(optimizer, length), []
    for _ in range(length):
        rates.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        moving.step()
    return rates


def marks(optimizer, length):
    return lr_scheduler.MultiStepLR(optimizer, [length // 4, 3 * length // 4], 0.3)


def one_cycle(optimizer, length):
    return lr_scheduler.OneCycleLR(optimizer, 0.5, total_steps=length, cycle_momentum=False)


SCHEDULES = [
    (Recipe(schedule="cosine"), lr_scheduler.CosineAnnealingLR),
    (Recipe(schedule="steps", milestones=(0.25, 0.75), factor=0.3), marks),
    (Recipe(schedule="constant"), lambda o, _: lr_scheduler.LambdaLR(o, lambda _: 1.0)),
]


class Slope(Plain):
    """The loss is θ, so that a step of SGD moves θ by the learning rate."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.zeros((), dtype=torch.float64))
        self.places: list[float] = []

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        self.places.append(self.theta.item())
        return 1 * self.theta

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return self.theta.expand(len(x))


def rates_of_steps(recipe: Recipe) -> tuple[list[float], list[float]]:
    """How far θ moved in each step and the rate noted for each epoch."""
    method = Slope()
    recipe = recipe.over(Recipe(optimizer="sgd", lr=0.5, batch_size=2, epochs=EPOCHS))
    history = fit(method, counted(2 * STEPS), recipe)
    places = [*method.places, method.theta.item()]
    return [a - b for a, b in zip(places, places[1:], strict=False)], history.lr


@pytest.mark.parametrize(("recipe", "schedule"), SCHEDULES)
def test_a_schedule_per_step(recipe, schedule):
    moved, noted = rates_of_steps(Recipe(per="step").over(recipe))
    want = of_torch(STEPS * EPOCHS, schedule)
    assert moved == pytest.approx(want, abs=1e-14)
    assert noted == want[STEPS - 1 :: STEPS]  # of the last step of each epoch, to the bit


@pytest.mark.parametrize(("recipe", "schedule"), SCHEDULES)
def test_a_schedule_per_epoch(recipe, schedule):
    moved, noted = rates_of_steps(recipe)
    want = of_torch(EPOCHS, schedule)
    assert noted == want
    assert moved == pytest.approx([rate for rate in want for _ in range(STEPS)], abs=1e-14)


def test_one_cycle_always_moves_per_step():
    moved, noted = rates_of_steps(Recipe(schedule="one_cycle"))
    want = of_torch(STEPS * EPOCHS, one_cycle)
    assert moved == pytest.approx(want, abs=1e-14)
    assert noted == want[STEPS - 1 :: STEPS]


def test_a_schedule_keeps_the_ratio_of_network_and_head():
    recipe = Recipe(schedule="one_cycle", lr=0.1, head_lr=0.3, epochs=5).complete()
    optimizer = recipe.optimise(SoftmaxNetwork(nn.Linear(3, 2), 2, 4))
    schedule = recipe.scheduler(optimizer, steps=2)
    assert schedule is not None
    for _ in range(10):
        low, high = (group["lr"] for group in optimizer.param_groups)
        assert high == pytest.approx(3 * low)
        optimizer.step()
        schedule.step()


def test_warm_up_raises_the_rates_over_the_first_steps():
    moved, noted = rates_of_steps(Recipe(warm_up=5))
    assert moved == pytest.approx([0.1, 0.2, 0.3, 0.4] + [0.5] * 8)
    assert noted == [0.5] * EPOCHS

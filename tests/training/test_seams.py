"""Where more can be attached: sources that augment, mixed precision, accumulation, processes."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from due.gp import Gaussian, InducingGP, Softmax
from due.lipschitz import constrain, layers
from due.methods import due as due_module
from due.methods.due import DUE
from due.methods.method import Method, Train
from due.methods.sngp import RandomFeatureGP, SNGPSoftmax
from due.methods.softmax import SoftmaxNetwork
from due.methods.treatment_due import TreatmentDUE
from due.networks import AppendTreatment, FCResNet
from due.rows.source import Data, Source, Table, draws, plan
from due.training import Recipe, fit, loop

from .toys import (
    Interrupt,
    Recorder,
    Regression,
    assert_same_run,
    counted,
    interrupt,
    run,
    wave,
)

J = 8


def network() -> nn.Module:
    """Bounded, so that power iterations take part."""
    torch.manual_seed(0)
    return constrain(FCResNet(3, J, 2).eval(), 0.95, torch.zeros(2, 3))


def gp(J: int = J, T: int = 1) -> InducingGP:
    return InducingGP(torch.zeros(10, J), T)


def effects(bound: str = "elbo") -> TreatmentDUE:
    f = AppendTreatment(network(), own_scale=True)
    return TreatmentDUE(f, gp(J + 1), Gaussian(), bound=bound)


METHODS: dict[str, Callable[[], Any]] = {
    "due-classes": lambda: DUE(network(), gp(T=3), Softmax(3)),
    "due-values": lambda: DUE(network(), gp(), Gaussian()),
    "softmax": lambda: SoftmaxNetwork(network(), J, 3),
    "sngp": lambda: SNGPSoftmax(network(), RandomFeatureGP(J, 3, S=64)),
    "due-effects": effects,
}
COLLAPSED: dict[str, Callable[[], Any]] = {
    "due": lambda: DUE(network(), gp(), Gaussian(), bound="collapsed"),
    "effects": lambda: effects("collapsed"),
}


def rows_for(name: str, N: int = 60) -> Data:
    """Three classes, values, or values of [x, t]; a third of the rows counts double."""
    x, y = wave(N)
    weights = 1.0 + (torch.arange(N) % 3 == 0)
    if "effects" in name:
        return torch.cat([x, (torch.arange(N) % 2)[:, None]], 1), y[:, None], weights
    if "values" in name or name == "due":
        return x, y[:, None], weights
    return x, (y > -0.5).long() + (y > 0.5).long(), weights


def in_double(rows: Data) -> Data:
    return tuple(part.double() if part.is_floating_point() else part for part in rows)


def distance(a: Method, b: Method) -> float:
    """The largest difference between two states; a singular vector v is known up to its sign."""
    mine, other = a.state_dict(), b.state_dict()
    assert mine.keys() == other.keys()
    for name in (name for name in mine if name.endswith(".v")):
        mine[name], other[name] = mine[name].abs(), other[name].abs()
    return max(float((mine[k] - other[k]).abs().max()) for k in mine if mine[k].numel())


def moved(method: Any, fresh: Any) -> float:
    """The largest difference between parameters of the networks."""
    pairs = zip(method.f.parameters(), fresh.f.parameters(), strict=True)
    return max(float((one - other).detach().abs().max()) for one, other in pairs)


# Sources that augment


class Stream(Source):
    """Rows that are made when they are asked for, and in training batches augmented."""

    def __init__(self, rows: Data, augment: Callable[[Tensor, torch.Generator], Tensor]) -> None:
        self.rows, self.augment = rows, augment
        self.rank, self.ranks = 0, 1

    def __len__(self) -> int:
        return len(self.rows[0])

    def take(self, rows: Tensor) -> Data:
        return tuple(torch.stack([part[i] for i in rows.tolist()]) for part in self.rows)

    def share(self, rank: int, ranks: int) -> "Stream":
        mine = Stream(self.rows, self.augment)
        mine.rank, mine.ranks = rank, ranks
        return mine

    def batches(
        self, batch_size: int | None, seed: int, epoch: int, start: int = 0
    ) -> Iterator[Data]:
        for step, numbers in plan(len(self), batch_size, seed, epoch, start):
            x, *rest = self.take(numbers[self.rank :: self.ranks])
            yield self.augment(x, draws(seed, epoch, step, self.rank)), *rest

    def fingerprint(self) -> dict[str, str]:
        return {"stream": str(len(self))}


def jitter(x: Tensor, generator: torch.Generator) -> Tensor:
    """All columns but the last, which may be a treatment, move a little."""
    noise = 0.1 * torch.randn(x[:, :-1].shape, generator=generator)
    return torch.cat([x[:, :-1] + noise, x[:, -1:]], 1)


def far(x: Tensor, generator: torch.Generator) -> Tensor:
    """Beyond 100, where no row is."""
    return x + 100 + torch.rand(x.shape, generator=generator)


SOURCES = {
    "table": lambda rows, augment: Table(*rows, transform=augment),
    "stream": lambda rows, augment: Stream(rows, augment),
}


class Witness(Method):
    """Notes the largest x that each verb sees."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.ones(()))
        self.saw: dict[str, list[float]] = {}

    def note(self, verb: str, x: Tensor) -> None:
        self.saw.setdefault(verb, []).append(x.max().item())

    def start(self, source: Source, seed: int) -> None:
        self.note("start", source.some(10, seed)[0])

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        self.note("call", x)
        return self.theta.square()

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        self.note("losses", x)
        return y

    def settle(self, source: Source) -> None:
        self.note("settle", source.whole()[0])

    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        assert held_out is not None
        for part in (*source.chunks(7), *held_out.chunks(7)):
            self.note("finish", part[0])

    def predictor(self) -> nn.Module:
        return self


@pytest.mark.parametrize("kind", SOURCES)
@pytest.mark.parametrize("batch_size", [8, "all"])
def test_only_training_batches_are_augmented(kind, batch_size):
    method, source = Witness(), SOURCES[kind](wave(30), far)
    fit(method, source, Recipe(epochs=2, batch_size=batch_size), held_out=source)
    drawn = method.saw.pop("call")
    assert min(drawn) > 90 and len(set(drawn)) == len(drawn)
    assert method.saw.keys() == {"start", "losses", "settle", "finish"}
    assert max(value for values in method.saw.values() for value in values) < 10


@pytest.mark.parametrize("kind", SOURCES)
def test_a_resumed_run_draws_the_same_augmentation(tmp_path, kind):
    def augmented(**arguments):
        return run(source=SOURCES[kind](wave(41), jitter), **arguments)

    want = augmented()
    assert moved(want[0], run(source=Table(*wave(41)))[0]) > 1e-3  # it matters
    with pytest.raises(Interrupt):
        augmented(checkpoint=tmp_path / "c.pt", interrupt_at=22)
    assert_same_run(augmented(checkpoint=tmp_path / "c.pt"), want)


@pytest.mark.parametrize("name", [*METHODS, *COLLAPSED])
def test_methods_learn_from_any_source(name):
    """The same bits from a stream as from a table of its rows."""
    make, recipe = (METHODS | COLLAPSED)[name], Recipe(epochs=2, lr=1e-2)
    if name in METHODS:
        recipe = Recipe(batch_size=16).over(recipe)
    states = []
    for kind in SOURCES.values():
        method = make()
        fit(method, kind(rows_for(name), jitter), recipe, held_out=kind(rows_for(name, 20), far))
        states.append(method)
    assert distance(*states) == 0
    assert moved(states[0], make()) > 1e-3


# Mixed precision


def dtypes(method: Method) -> dict[str, torch.dtype]:
    return {name: tensor.dtype for name, tensor in method.state_dict().items()}


HALF = [*((name, "bf16") for name in METHODS), ("due-values", "fp16"), ("softmax", "fp16")]


@pytest.mark.parametrize(("name", "precision"), HALF)
def test_mixed_precision_trains_to_nearly_the_same(name, precision):
    rows = Table(*rows_for(name))
    seen: dict[bool, set[torch.dtype]] = {True: set(), False: set()}

    def note(layer: nn.Module, _: object, output: Tensor) -> None:
        seen[layer.training].add(output.dtype)

    def trained(precision: str) -> tuple[Any, list[float]]:
        method = METHODS[name]()
        before = dtypes(method)
        layer = next(m for m in method.modules() if isinstance(m, nn.Linear))
        layer.register_forward_hook(note)
        recipe = Recipe(lr=1e-2, epochs=6, batch_size=16, precision=precision)
        history = fit(method, rows, recipe, held_out=rows)
        assert dtypes(method) == before
        assert history.loss[-1] < history.loss[0] - 0.05
        return method, history.loss

    method, losses = trained(precision)
    half = torch.bfloat16 if precision == "bf16" else torch.float16
    assert seen[True] == {half}
    assert torch.float32 in seen[False] and half not in seen[False]  # start, validation, finish
    full, want = trained("float32")
    assert losses == pytest.approx(want, abs=0.02)
    x = rows.data[0]
    with torch.no_grad():
        answer, wanted = method.predict(x), full.predict(x)
    pairs = zip(answer, wanted, strict=True) if isinstance(answer, tuple) else [(answer, wanted)]
    assert all(torch.allclose(got, right, atol=0.05) for got, right in pairs)


@pytest.mark.parametrize("name", ["due-classes", "due-values", "due-effects"])
def test_the_algebra_of_the_gp_stays_float64_under_autocast(name):
    method, (x, y, _) = METHODS[name](), rows_for(name)
    method.start(Table(x, y), 0)
    with torch.autocast("cpu", torch.bfloat16):
        h = method.f(x)
        A, loss = method.gp.project(h), method.eval()(x, y)
    assert loss.dtype == A.dtype == torch.float64
    assert torch.equal(A, method.gp.project(h))  # no product of it was rounded
    method.train()(x, y).backward()
    assert all(p.grad is None or p.grad.dtype == p.dtype for p in method.parameters())


def test_a_schedule_waits_for_the_first_step_that_fp16_does_not_skip():
    x, y = wave()
    rows = Table(x, 1000 * y)  # scaled gradients overflow at first; warnings are errors
    for per in ("step", "epoch"):
        method, recipe = Regression(), Recipe(precision="fp16", schedule="cosine", per=per, lr=0.1)
        history = fit(method, rows, Recipe(epochs=20).over(recipe))
        assert history.lr[:2] == [0.1, 0.1] and history.lr[-1] < 0.1


# Accumulation


@pytest.mark.parametrize("accumulate", [2, 7])
@pytest.mark.parametrize("name", [name for name in METHODS if name != "due-classes"])
def test_accumulation_equals_one_large_batch(name, accumulate):
    """Batches of 25, 25 and 10 rows, whose pieces are unequal; the softmax of DUE is sampled."""
    rows, trained = Table(*in_double(rows_for(name))), []
    for pieces in (1, accumulate):
        method = METHODS[name]().double()
        recipe = Recipe(lr=1e-2, epochs=2, batch_size=25, accumulate=pieces)
        history = fit(method, rows, recipe)
        trained.append((method, history.loss))
    (whole, want), (cut, losses) = trained
    assert distance(cut, whole) < 1e-6
    assert losses == pytest.approx(want, abs=1e-8)
    assert moved(whole, METHODS[name]().double()) > 1e-2


def test_pieces_have_at_least_two_rows_for_batch_norm():
    method = Recorder()
    fit(method, counted(13), Recipe(epochs=1, batch_size=6, accumulate=4))
    assert [len(batch) for batch in method.batches] == [2, 2, 2, 3, 2, 2]
    fit(Regression(), Table(*wave(13)), Recipe(epochs=1, batch_size=6, accumulate=4))

    alone = Recorder()
    fit(alone, counted(1), Recipe(epochs=1, accumulate=4))
    assert [len(batch) for batch in alone.batches] == [1]


@pytest.mark.parametrize("recipe", [Recipe(accumulate=2), Recipe(batch_size=10)], ids=str)
@pytest.mark.parametrize("name", COLLAPSED)
def test_the_collapsed_bound_refuses_pieces(name, recipe):
    with pytest.raises(ValueError, match="needs all rows in one piece.*bound='elbo'"):
        fit(COLLAPSED[name](), Table(*rows_for(name)), Recipe(epochs=1).over(recipe))


def test_the_automatic_bound_is_judged_by_the_number_of_rows(monkeypatch):
    rows, recipe = Table(*rows_for("due-effects")), Recipe(epochs=1, accumulate=2)
    with pytest.raises(ValueError, match="in one piece"):
        fit(effects("auto"), rows, recipe)
    monkeypatch.setattr(due_module, "COLLAPSED_ROWS", 59)
    assert len(fit(effects("auto"), rows, recipe).loss) == 1


# Several processes


@pytest.mark.parametrize("name", ["softmax", "sngp", "due-values", "due-effects"])
def test_the_gradients_of_all_processes_are_those_of_one(name):
    rows, method = Table(*in_double(rows_for(name, 23))), METHODS[name]().double()
    method.start(rows, 0)
    method.eval()  # no power iterations in between

    def gradient(batch: Data, share: float) -> list[Tensor]:
        loss = share * method(*batch)
        return list(torch.autograd.grad(loss, [p for p in method.parameters() if p.requires_grad]))

    ranks = [rows.share(rank, 3).batches(8, seed=0, epoch=0) for rank in range(3)]
    for whole, *parts in zip(rows.batches(8, seed=0, epoch=0), *ranks, strict=True):
        n = len(whole[0])
        pieces = [gradient(part, len(part[0]) / n) for part in parts]
        for want, *got in zip(gradient(whole, 1.0), *pieces, strict=True):
            assert torch.allclose(torch.stack(got).sum(0), want, atol=1e-9)


def test_power_iterations_now_and_then_hold_the_bound_and_resume_exactly(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "FAST_STEPS", 2)
    recipe = Recipe(lr=0.02, batch_size=16, epochs=6, refresh=4)
    source = Table(*rows_for("due-classes"))

    def train(at: int | None = None, **arguments: Any) -> tuple[Any, Any]:
        method = METHODS["due-classes"]()
        interrupt(method.f, at)
        return method, fit(method, source, recipe, **arguments)

    want = train()
    file = tmp_path / "c.pt"
    with pytest.raises(Interrupt):
        train(18, checkpoint=file, checkpoint_every=1)
    assert any(name.endswith(".G") for name in torch.load(file, weights_only=True)["method"])
    assert_same_run(train(checkpoint=file), want)
    assert max(layers(want[0].f, torch.zeros(2, 3)).values()) <= 0.95 * 1.001
    each = METHODS["due-classes"]()
    fit(each, source, Recipe(refresh=1).over(recipe))
    x = source.data[0]
    found = (want[0].predict(x) - each.predict(x)).abs().max().item()
    assert 0 < found < 0.05  # another approximation of the same constraint

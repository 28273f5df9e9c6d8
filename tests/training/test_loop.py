import json
import math
import sys
from dataclasses import asdict
from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from due.methods.method import Plain, Train
from due.rows.source import Source, Table
from due.training import DivergenceError, History, Recipe, fit

from .toys import Recorder, Regression, counted, run, wave

SGD = Recipe(optimizer="sgd", lr=0.1)


def step_through(method: Recorder, n: int, progress=None, **recipe) -> History:
    """One step per epoch, θ ← 0.9 θ."""
    held_out = counted(1)
    return fit(
        method,
        counted(4),
        Recipe(epochs=n, **recipe).over(SGD),
        held_out=held_out,
        progress=progress,
    )


def test_is_gradient_descent():
    x, y = wave()
    method, by_hand = Regression(dropout=0.0), Regression(dropout=0.0)
    history = fit(method, Table(x, y), Recipe(epochs=3).over(SGD))

    optimizer = torch.optim.SGD(by_hand.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = by_hand(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert history.loss == pytest.approx(losses)
    assert not method.training
    for name, tensor in by_hand.f.state_dict().items():
        assert torch.equal(method.f.state_dict()[name], tensor)


def test_order_depends_on_seed_and_epoch():
    method, other = Recorder(), Recorder()
    fit(method, counted(20), Recipe(epochs=2, batch_size=20).over(SGD))
    fit(other, counted(20), Recipe(epochs=1, batch_size=20).over(SGD), seed=1)
    assert len({tuple(batch) for batch in method.batches + other.batches}) == 3


def test_weights_reach_the_method():
    x, y = wave()
    rows = Table(x, y, torch.zeros(len(x)))
    history = fit(Regression(), rows, Recipe(epochs=2, batch_size=10).over(SGD))
    assert history.loss == [0.0, 0.0]


class Verbs(Plain):
    """Notes what is called, and in which mode; draws a random number in each verb."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.ones(()))
        self.called: list[str] = []
        self.drawn: list[float] = []

    def note(self, verb: str, training: bool, grad: bool = False) -> None:
        assert (self.training, torch.is_grad_enabled()) == (training, grad), verb
        self.called.append(verb)
        self.drawn.append(torch.rand(()).item())

    def start(self, source: Source, seed: int) -> None:
        self.note("start", training=True, grad=True)

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        self.note("call", training=True, grad=True)
        return self.theta.square()

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        self.note("losses", training=False)
        return self.theta * x

    def settle(self, source: Source) -> None:
        self.note("settle", training=False)

    def finish(self, source: Source, held_out: Source | None, seed: int, train: Train) -> None:
        self.note("finish", training=False, grad=True)


def test_the_life_of_a_method():
    method = Verbs()
    fit(method, counted(4), Recipe(epochs=2, batch_size=2), held_out=counted(3))
    epoch = ["call", "call", "settle", "losses"]
    assert method.called == ["start", *epoch, *epoch, "settle", "finish"]

    again = Verbs()
    fit(again, counted(4), Recipe(epochs=1), held_out=counted(0), start=False)
    assert again.called == ["call", "settle", "finish"]


def test_all_randomness_comes_from_the_seed_and_the_callers_is_untouched():
    def drawn(seed: int, before: int) -> list[float]:
        method = Verbs()
        torch.manual_seed(before)
        state = torch.get_rng_state()
        fit(method, counted(4), Recipe(epochs=2), held_out=counted(3), seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        return method.drawn

    assert drawn(0, before=1) == drawn(0, before=2)
    assert set(drawn(0, before=1)).isdisjoint(drawn(1, before=1))


class Largest(TorchDispatchMode):
    """The most bytes that an operation allocates at once."""

    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        known = {id(a.untyped_storage()) for a in args if isinstance(a, Tensor)}
        if isinstance(result, Tensor) and id(result.untyped_storage()) not in known:
            is_view = any(isinstance(a, Tensor) and result._is_view() for a in args)
            self.bytes = max(self.bytes, 0 if is_view else result.untyped_storage().nbytes())
        return result


def test_rows_are_not_copied():
    x = torch.randn(50_000, 30)
    rows = Table(x, x[:, 0])
    method = Regression()
    method.f[0] = nn.Linear(30, 16)
    with Largest() as largest:
        fit(method, rows, Recipe(epochs=1, batch_size=500), held_out=rows)
    permutation = 8 * len(x)
    assert 500 * 30 * 4 < largest.bytes <= permutation < x.nbytes / 10


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        ({"source": counted(0)}, "no rows"),
        ({"checkpoint_every": 0}, "checkpoint_every=0"),
        ({"recipe": Recipe(epochs=0)}, "epochs=0"),
    ],
)
def test_wrong_arguments_are_named(arguments, word):
    with pytest.raises(ValueError, match=word):
        fit(Recorder(), **{"source": counted(3), **arguments})


# Divergence


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_stops_before_the_weights_are_spoilt(bad):
    x, y = wave(40)
    y[25] = bad
    rows, method = Table(x, y), Regression()
    step = next(i for i, b in enumerate(rows.batches(8, 0, 0)) if not b[1].isfinite().all())
    with pytest.raises(DivergenceError, match=rf"{bad} at epoch 0, step {step}.*smaller learning"):
        fit(method, rows, Recipe(epochs=1, batch_size=8).over(SGD))
    assert all(p.isfinite().all() for p in method.parameters())
    assert issubclass(DivergenceError, FloatingPointError)


class Singular(Plain):
    """Factorises a singular matrix in one of its verbs."""

    def __init__(self, verb: str) -> None:
        super().__init__()
        self.theta, self.verb = nn.Parameter(torch.ones(())), verb

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        return self.theta + self._factorise("call")

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return self._factorise("losses") * x

    def _factorise(self, verb: str) -> Tensor:
        size = 0.0 if verb == self.verb else 1.0
        return torch.linalg.cholesky(size * torch.eye(2)).sum()


@pytest.mark.parametrize(
    ("verb", "where"), [("call", "at epoch 0, step 0"), ("losses", "after epoch 0")]
)
def test_a_matrix_that_cannot_be_factorised_is_a_divergence(verb, where):
    with pytest.raises(DivergenceError, match=f"cannot be computed {where}: .*cholesky"):
        fit(Singular(verb), counted(4), Recipe(epochs=2), held_out=counted(3))


# Validation and early stopping

SEQUENCES = [  # values, patience → epochs run, best epoch, stopped early
    ([3, 2, 1], None, 3, 2, False),
    ([3, 1, 2], None, 3, 1, False),
    ([3, 1, 2, 2, 0], 2, 4, 1, True),
    ([3, 1, 2, 0.5, 2], 2, 5, 3, False),
    ([1, 1, 1, 1], 2, 3, 0, True),  # a tie is no improvement
    ([1, 2, 3], 2, 3, 0, True),  # the last epoch is also the last chance
    ([math.nan, 2, math.nan, math.nan, 1], 2, 4, 1, True),
    ([math.nan, math.nan, 1], 3, 3, 2, False),
    ([math.inf, 1], None, 2, 1, False),
    ([2, -math.inf, 1], None, 3, 1, False),
]


@pytest.mark.parametrize(("values", "patience", "n", "best", "stopped"), SEQUENCES)
def test_early_stopping(values, patience, n, best, stopped):
    method = Recorder(values)
    history = step_through(method, len(values), patience=patience)
    assert len(history.loss) == len(history.validation) == len(method.batches) == n
    assert (history.best_epoch, history.stopped_early) == (best, stopped)
    assert method.theta.item() == pytest.approx(0.9 ** (best + 1))  # θ ← 0.9 θ in each epoch


def test_a_held_out_loss_that_is_never_finite_is_a_divergence():
    with pytest.raises(DivergenceError, match="to inf"):
        step_through(Recorder([math.nan, math.nan, 1]), 3, patience=2)


def test_without_held_out_rows_all_epochs_are_run():
    history = fit(Recorder(), counted(4), Recipe(epochs=5, patience=1))
    assert len(history.loss) == 5 and history.validation == [] and history.best_epoch is None


def test_validation_is_the_weighted_mean_of_the_losses():
    x, weights = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([1.0, 0.0, 3.0])
    held_out = Table(x, torch.zeros(3), weights)
    history = fit(Verbs(), counted(4), Recipe(epochs=1, lr=1e-9), held_out=held_out)
    assert history.validation == pytest.approx([(1 * 1 + 3 * 3) / 4])  # a row's loss is θ x


def test_the_best_epoch_is_restored_with_its_buffers_and_then_settles():
    method, history = run()
    best = history.best_epoch
    assert best is not None and best < len(history.loss) - 1
    assert method.seen == (best + 1) * (41 + 1) + 1  # 41 rows and `settle` in each epoch


# History and progress


class Size(Plain):
    """The loss of a batch is its size; validation is NaN at first, then 1."""

    def __init__(self) -> None:
        super().__init__()
        self.theta, self.values = nn.Parameter(torch.ones(())), iter([math.nan, 1.0])

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        return 0 * self.theta + len(x)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.full((len(x),), next(self.values))


def test_history_is_strict_json_and_weighs_rows():
    history = fit(Size(), counted(7), Recipe(epochs=2, batch_size=4), held_out=counted(2))
    assert history.loss == [(4 * 4 + 3 * 3) / 7] * 2
    assert history.validation[0] is None and all(s > 0 for s in history.seconds)
    plain = json.loads(json.dumps(asdict(history), allow_nan=False))
    assert plain["validation"] == [None, 1.0] and plain["best_epoch"] == 1
    assert set(plain) == {"loss", "validation", "lr", "seconds", "best_epoch", "stopped_early"}


def test_after_epoch_is_told_how_many_are_done():
    done: list[int] = []
    fit(Recorder(), counted(4), Recipe(epochs=3, batch_size=2), after_epoch=done.append)
    assert done == [1, 2, 3]


@pytest.mark.parametrize(("progress", "shown"), [(None, False), (False, False), (True, True)])
def test_quiet_off_a_terminal(capsys, progress, shown):
    step_through(Recorder([2.0, 1.0]), 2, progress)
    captured = capsys.readouterr()
    assert captured.out == ""
    if not shown:
        assert captured.err == ""
        return
    assert "epoch 2/2" in captured.err
    assert "loss=0.405" in captured.err and "validation=1" in captured.err


def test_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    step_through(Recorder([2.0, 1.0]), 2)
    assert "epoch 2/2" in capsys.readouterr().err


# torch.compile


@pytest.fixture
def fresh_compiler():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def test_compile_gives_the_same_losses(monkeypatch, fresh_compiler):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))

    def losses(compile: bool) -> list[float]:
        method = Regression(dropout=0.0)
        recipe = Recipe(epochs=4, batch_size=12, compile=compile).over(SGD)
        history = fit(method, Table(*wave()), recipe)
        assert not any("_orig_mod" in name for name in method.state_dict())
        return history.loss

    assert losses(True) == pytest.approx(losses(False), abs=1e-4)


def test_a_smaller_last_batch_does_not_recompile_every_epoch(monkeypatch, fresh_compiler):
    compiled = []

    def backend(graph, example):
        compiled.append(example)
        return graph.forward

    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=backend))
    rows = Table(*wave(44))
    recipe = Recipe(epochs=5, batch_size=12, compile=True).over(SGD)
    fit(Regression(), rows, recipe, held_out=rows)
    assert 1 <= len(compiled) <= 2


class FailsWhenCompiled(Plain):
    """NaN inside torch.compile, a finite loss outside: a singular kernel matrix behaves so."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        loss = self.losses(x, y).mean()
        return loss * torch.nan if torch.compiler.is_compiling() else loss

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        return (self.w * x).square()


def test_a_step_that_fails_only_when_compiled_is_repeated_without(monkeypatch, fresh_compiler):
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    rows = Table(torch.ones(4), torch.ones(4))
    history = fit(FailsWhenCompiled(), rows, Recipe(epochs=3, compile=True).over(SGD))
    assert history.loss[-1] < history.loss[0]

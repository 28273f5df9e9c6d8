import json
import math
import random
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.optim import SGD, Adam, lr_scheduler

import due.train as module
from due.storage import StorageError
from due.train import DivergenceError, History, _batches, _n_steps, train


class Regression(nn.Module):
    """(f(x) − y)², weighted; f has batch norm, dropout and a buffer that each step changes."""

    def __init__(self, dropout: float = 0.3) -> None:
        super().__init__()
        torch.manual_seed(7)
        self.f = nn.Sequential(
            nn.Linear(3, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Dropout(dropout), nn.Linear(16, 1)
        )
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        if self.training:
            self.seen += len(x)
        errors = (self.predict(x) - y).square()
        return errors.mean() if weights is None else (weights * errors).mean()

    def predict(self, x: Tensor) -> Tensor:
        return self.f(x).squeeze(-1)


class Recorder(nn.Module):
    """Notes the rows of every batch; its loss is ½ θ²."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(1.0))
        self.batches: list[list[int]] = []

    def forward(self, x: Tensor) -> Tensor:
        self.batches.append(x.tolist())
        return self.theta.square() / 2


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


def toy(N: int = 41) -> tuple[Tensor, Tensor]:
    x = torch.randn(N, 3, generator=torch.Generator().manual_seed(1))
    return x, x.sin().sum(-1)


def step_through(values: list[float], model: Recorder, **arguments) -> History:
    """Train one step per epoch, the validation values given."""
    sequence = iter(values)
    return train(
        model,
        (torch.arange(4),),
        optimizer=SGD(model.parameters(), lr=0.1),
        validation=lambda: next(sequence),
        **{"epochs": len(values), **arguments},
    )


# The loop


def test_is_gradient_descent():
    x, y = toy()
    model, by_hand = Regression(dropout=0.0), Regression(dropout=0.0)
    history = train(model, (x, y), optimizer=SGD(model.parameters(), lr=0.1), epochs=3)

    optimizer = SGD(by_hand.parameters(), lr=0.1)
    losses = []
    for _ in range(3):
        optimizer.zero_grad()
        loss = by_hand(x, y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert history.loss == pytest.approx(losses)
    assert not model.training
    for name, tensor in by_hand.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), st.integers(1, 70), st.integers(0, 2**40), st.integers(0, 5))
def test_each_epoch_covers_every_row_once(N, batch_size, seed, epoch):
    data = (torch.arange(N), torch.arange(N) * 2)
    batches = list(_batches(data, batch_size, seed, epoch, 0))
    rows = torch.cat([batch[0] for batch in batches])
    assert sorted(rows.tolist()) == list(range(N))
    assert all(torch.equal(b[1], 2 * b[0]) for b in batches)
    assert len(batches) == _n_steps(N, batch_size)
    if min(N, batch_size) > 1:
        assert all(2 <= len(b[0]) <= batch_size + 1 for b in batches)
    for start in range(len(batches)):  # a resumed epoch goes on in the same order
        rest = _batches(data, batch_size, seed, epoch, start)
        assert [b[0].tolist() for b in rest] == [b[0].tolist() for b in batches[start:]]


@pytest.mark.parametrize(
    ("N", "batch_size", "sizes"),
    [
        (9, 4, [4, 5]),
        (10, 4, [4, 4, 2]),
        (8, 4, [4, 4]),
        (5, 4, [5]),
        (3, 4, [3]),
        (1, 4, [1]),
        (3, 1, [1, 1, 1]),
        (7, None, [7]),
    ],
)
def test_a_single_row_left_over_joins_the_batch_before(N, batch_size, sizes):
    assert [len(b[0]) for b in _batches((torch.zeros(N),), batch_size, 0, 0, 0)] == sizes


def test_order_depends_on_seed_and_epoch():
    model = Recorder()
    train(
        model,
        (torch.arange(20),),
        optimizer=SGD(model.parameters(), lr=0.1),
        epochs=2,
        batch_size=20,
    )
    again = Recorder()
    train(
        again,
        (torch.arange(20),),
        optimizer=SGD(again.parameters(), lr=0.1),
        epochs=1,
        batch_size=20,
        seed=1,
    )
    assert len({tuple(batch) for batch in model.batches + again.batches}) == 3


def test_full_batch_is_the_data_themselves():
    class Same(Recorder):
        def forward(self, x: Tensor) -> Tensor:
            assert x.data_ptr() == data.data_ptr()
            return self.theta.square()

    data, model = torch.arange(10.0), Same()
    train(model, (data,), optimizer=SGD(model.parameters(), lr=0.1), epochs=2)


def test_weights_reach_the_model():
    x, y = toy()
    model = Regression()
    history = train(
        model,
        (x, y, torch.zeros(len(x))),
        optimizer=SGD(model.parameters(), lr=0.1),
        epochs=2,
        batch_size=10,
    )
    assert history.loss == [0.0, 0.0]


def test_chance_comes_from_seed_alone_and_the_callers_is_untouched():
    x, y = toy()

    def weights(seed: int, before: int) -> Tensor:
        model = Regression()
        torch.manual_seed(before)
        state = torch.get_rng_state()
        train(model, (x, y), optimizer=Adam(model.parameters()), epochs=2, batch_size=8, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        return model.f[0].weight.detach()

    assert torch.equal(weights(0, before=1), weights(0, before=2))
    assert not torch.equal(weights(0, before=1), weights(1, before=1))


def test_lbfgs_gets_its_closure():
    x, y = toy()
    model = Regression(dropout=0.0)
    history = train(model, (x, y), optimizer=torch.optim.LBFGS(model.parameters()), epochs=5)
    assert history.loss[-1] < 0.1 * history.loss[0]


def test_million_rows_are_not_copied():
    """Peak memory of an epoch over 1,000,000 × 10 stays far below another copy (40 MB)."""
    code = """
import resource, torch
from torch import nn
from due.train import train
torch.set_num_threads(1)
class Mean(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(10))
    def forward(self, x):
        return (x @ self.w - 1).square().mean()
model, x = Mean(), torch.randn(1_000_000, 10)
def run(epochs, x):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    train(model, (x,), optimizer=optimizer, epochs=epochs, batch_size=10_000)
run(1, x[:20_000])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
run(3, x)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 30_000  # kB; the permutation takes 8,000


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"batch_size": 0}, "batch_size is 0"),
        ({"patience": 2}, "give validation"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0"),
        ({"data": (torch.zeros(3, 3), torch.zeros(2))}, r"\[3, 2\] rows"),
        ({"data": (torch.zeros(0, 3), torch.zeros(0))}, "not empty"),
    ],
)
def test_wrong_arguments_are_named(change, word):
    model = Regression()
    arguments = {"data": toy(), "epochs": 1, "optimizer": SGD(model.parameters(), lr=0.1)}
    with pytest.raises(ValueError, match=word):
        train(model, **{**arguments, **change})


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_divergence_stops_before_the_weights_are_spoilt(bad):
    x, y = toy(40)
    y[25] = bad
    model = Regression()
    order = next(i for i, b in enumerate(_batches((x, y), 8, 0, 0, 0)) if not b[1].isfinite().all())
    with pytest.raises(DivergenceError, match=rf"{bad} at epoch 0, step {order}.*smaller learning"):
        train(model, (x, y), optimizer=SGD(model.parameters(), lr=0.1), epochs=1, batch_size=8)
    assert all(p.isfinite().all() for p in model.parameters())
    assert issubclass(DivergenceError, FloatingPointError)


# Validation and early stopping

SEQUENCES = [  # values, patience → epochs run, best epoch, stopped early
    ([3, 2, 1], None, 3, 2, False),
    ([3, 1, 2], None, 3, 1, False),
    ([3, 1, 2, 2, 0], 2, 4, 1, True),
    ([3, 1, 2, 0.5, 2], 2, 5, 3, False),
    ([1, 1, 1, 1], 2, 3, 0, True),  # a tie is no improvement
    ([1, 2, 3], 2, 3, 0, True),  # the last epoch is also the last chance
    ([math.nan, 2, math.nan, math.nan, 1], 2, 4, 1, True),
    ([math.nan, math.nan, 1], 2, 2, None, True),
    ([math.nan, math.nan, 1], 3, 3, 2, False),
    ([math.inf, 1], None, 2, 1, False),
    ([2, -math.inf, 1], None, 3, 1, False),
]


@pytest.mark.parametrize(("values", "patience", "n", "best", "stopped"), SEQUENCES)
def test_early_stopping(values, patience, n, best, stopped):
    model = Recorder()
    history = step_through([float(v) for v in values], model, patience=patience)
    assert len(history.loss) == len(history.validation) == len(model.batches) == n
    assert (history.best_epoch, history.stopped_early) == (best, stopped)
    kept = n if best is None else best + 1  # θ ← 0.9 θ in each epoch
    assert model.theta.item() == pytest.approx(0.9**kept)


def test_validation_runs_in_eval_mode_without_gradients():
    model, calls = Regression(), []

    def note(name: str) -> float:
        calls.append(name)
        assert not model.training and not torch.is_grad_enabled()
        return 0.0

    train(
        model,
        toy(),
        optimizer=SGD(model.parameters(), lr=0.1),
        epochs=2,
        validation=lambda: note("validation"),
        before_validation=lambda: note("before"),
    )
    assert calls == ["before", "validation"] * 2 + ["before"]


def test_before_validation_sees_the_restored_weights():
    model, seen = Recorder(), []
    step_through(
        [1.0, 0.0, 2.0],
        model,
        before_validation=lambda: seen.append(model.theta.item()),
    )
    assert seen == pytest.approx([0.9, 0.81, 0.729, 0.81])


def test_buffers_are_restored_too():
    model = Regression()
    values = iter([1.0, 0.0, 2.0, 3.0])
    train(
        model,
        toy(),
        optimizer=SGD(model.parameters(), lr=0.1),
        epochs=4,
        validation=lambda: next(values),
    )
    assert model.seen == 2 * 41


def test_schedule_is_stepped_once_per_epoch():
    model = Recorder()
    optimizer = SGD(model.parameters(), lr=1.0)
    history = train(
        model,
        (torch.arange(10),),
        optimizer=optimizer,
        epochs=3,
        batch_size=2,
        schedule=lr_scheduler.StepLR(optimizer, 1, gamma=0.5),
    )
    assert history.lr == [1.0, 0.5, 0.25]


def test_history_is_strict_json_and_weighs_rows():
    class Size(Recorder):
        def forward(self, x: Tensor) -> Tensor:
            return self.theta * 0 + len(x)

    model = Size()
    values = iter([math.nan, 1.0])
    history = train(
        model,
        (torch.arange(7),),
        optimizer=SGD(model.parameters(), lr=0.1),
        epochs=2,
        batch_size=4,
        validation=lambda: next(values),
    )
    assert history.loss == [(4 * 4 + 3 * 3) / 7] * 2
    assert math.isnan(history.validation[0]) and all(s > 0 for s in history.seconds)
    plain = json.loads(json.dumps(history.as_dict(), allow_nan=False))
    assert plain["validation"] == [None, 1.0] and plain["best_epoch"] == 1
    assert set(plain) == {"loss", "validation", "lr", "seconds", "best_epoch", "stopped_early"}


# Progress


@pytest.mark.parametrize(("progress", "shown"), [(None, False), (False, False), (True, True)])
def test_quiet_off_a_terminal(capsys, progress, shown):
    step_through([2.0, 1.0], Recorder(), progress=progress)
    captured = capsys.readouterr()
    assert captured.out == ""
    if not shown:
        assert captured.err == ""
        return
    assert "epoch 2/2" in captured.err
    assert "loss=0.405" in captured.err and "validation=1" in captured.err


def test_bar_on_a_terminal(capsys, monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    step_through([2.0, 1.0], Recorder())
    assert "epoch 2/2" in capsys.readouterr().err


# Checkpoints


class Interrupt(Exception):
    pass


def fit(checkpoint: Path | None = None, interrupt_at: int | None = None, **changes):
    """Dropout, batch norm, schedule, early stopping, a changing buffer; perhaps interrupted."""
    x, y = toy(60)
    model = Regression()
    optimizer = Adam(model.parameters(), lr=0.05)
    calls = 0

    def count(*_: object) -> None:
        nonlocal calls
        calls += 1
        if calls == interrupt_at:
            raise Interrupt

    model.f.register_forward_pre_hook(count)
    arguments = {
        "data": (x[:41], y[:41]),
        "optimizer": optimizer,
        "schedule": lr_scheduler.CosineAnnealingLR(optimizer, T_max=8),
        "epochs": 8,
        "batch_size": 8,
        "validation": lambda: model(x[41:], y[41:]).item(),
        "patience": 4,
        "before_validation": lambda: model.seen.add_(1),
        "checkpoint": checkpoint,
        "checkpoint_every": 3,
    }
    return model, train(model, **{**arguments, **changes})


def assert_same_run(got, want) -> None:
    (got_model, got_history), (want_model, want_history) = got, want
    for name, tensor in want_model.state_dict().items():
        assert torch.equal(got_model.state_dict()[name], tensor), name
    got_plain, want_plain = got_history.as_dict(), want_history.as_dict()
    assert len(got_plain.pop("seconds")) == len(want_plain.pop("seconds"))
    assert got_plain == want_plain


def test_resume_is_exact_from_any_step(tmp_path):
    want = fit()
    chance = random.Random(0)
    for trial in range(12):
        file = tmp_path / f"{trial}.pt"
        interrupts = 0
        while True:  # interrupted again and again
            try:
                got = fit(file, interrupt_at=chance.randint(2, 30))
                break
            except Interrupt:
                interrupts += 1
        assert interrupts > 0
        assert_same_run(got, want)


def test_the_runs_above_test_what_they_say():
    model, history = fit()
    assert history.best_epoch is not None and history.best_epoch < len(history.loss) - 1
    assert history.stopped_early
    assert_same_run(fit(), (model, history))


def test_checkpoints_do_not_change_the_run(tmp_path):
    assert_same_run(fit(tmp_path / "c.pt", checkpoint_every=1), fit())
    assert_same_run(fit(tmp_path / "d.pt", checkpoint_every=None), fit())


def test_finished_run_returns_at_once(tmp_path):
    want = fit(tmp_path / "c.pt")
    got = fit(tmp_path / "c.pt", interrupt_at=1)  # not one forward pass
    assert_same_run(got, want)
    assert got[1] == want[1] and not got[0].training


def test_resume_in_the_same_process_with_the_same_objects(tmp_path):
    """As in a notebook: interrupted, then the same cell again; lr has moved in between."""
    want = fit()
    x, y = toy(60)
    model = Regression()
    optimizer = Adam(model.parameters(), lr=0.05)
    schedule = lr_scheduler.CosineAnnealingLR(optimizer, T_max=8)
    calls = 0

    def validation() -> float:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise Interrupt
        return model(x[41:], y[41:]).item()

    def go_on() -> History:
        return train(
            model,
            (x[:41], y[:41]),
            optimizer=optimizer,
            schedule=schedule,
            epochs=8,
            batch_size=8,
            validation=validation,
            patience=4,
            before_validation=lambda: model.seen.add_(1),
            checkpoint=tmp_path / "c.pt",
            checkpoint_every=4,
        )

    with pytest.raises(Interrupt):
        go_on()
    assert_same_run((model, go_on()), want)


@pytest.mark.parametrize(
    "schedule",
    [
        lambda o: lr_scheduler.MultiStepLR(o, [2, 4]),
        lambda o: lr_scheduler.OneCycleLR(o, max_lr=0.1, total_steps=9, cycle_momentum=False),
        lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
        lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 3),
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.9)], [3]
        ),
    ],
    ids=["multistep", "onecycle", "lambda", "restarts", "sequential"],
)
@pytest.mark.parametrize("kind", [Adam, torch.optim.LBFGS, torch.optim.AdamW])
def test_resume_with_other_optimisers_and_schedules(tmp_path, kind, schedule):
    x, y = toy(40)

    def run(checkpoint: Path | None, interrupt_at: int | None = None):
        model = Regression()
        optimizer = kind(model.parameters(), lr=0.05)
        calls = 0

        def count(*_: object) -> None:
            nonlocal calls
            calls += 1
            if calls == interrupt_at:
                raise Interrupt

        model.f.register_forward_pre_hook(count)
        return model, train(
            model,
            (x, y),
            optimizer=optimizer,
            schedule=schedule(optimizer),
            epochs=4,
            batch_size=20,
            checkpoint=checkpoint,
            checkpoint_every=1,
        )

    want = run(None)
    with pytest.raises(Interrupt):
        run(tmp_path / "c.pt", interrupt_at=6)
    assert_same_run(run(tmp_path / "c.pt"), want)


def test_full_batch_resume(tmp_path):
    changes = {"batch_size": None, "epochs": 12, "patience": None}
    want = fit(**changes)
    with pytest.raises(Interrupt):
        fit(tmp_path / "c.pt", interrupt_at=9, **changes)
    assert_same_run(fit(tmp_path / "c.pt", **changes), want)


def test_checkpoint_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Interrupt):
        fit(tmp_path / "deep" / "c.pt", interrupt_at=5, checkpoint_every=None)
    saved = torch.load(tmp_path / "deep" / "c.pt", weights_only=True)
    assert saved["steps"] == 4


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"batch_size": 9}, "batch_size was 8, is 9"),
        ({"epochs": 9}, "epochs was 8, is 9"),
        ({"data": toy(40)}, r"data\[0\] was \[41, 3\].*is \[40, 3\]"),
        ({"data": tuple(-t for t in toy(41))}, r"data\[1\] was \[41\]"),
        ({"schedule": None}, "schedule was CosineAnnealingLR, is NoneType"),
    ],
)
def test_checkpoint_of_other_settings_is_refused(tmp_path, change, word):
    fit(tmp_path / "c.pt")
    with pytest.raises(StorageError, match=rf"c\.pt is of another run: .*{word}.*delete it"):
        fit(tmp_path / "c.pt", **change)


def test_checkpoint_of_another_model_or_learning_rate_is_refused(tmp_path):
    def run(width: int, lr: float) -> None:
        model = Regression()
        model.f[0], model.f[1] = nn.Linear(3, width), nn.BatchNorm1d(width)
        model.f[4] = nn.Linear(width, 1)
        optimizer = SGD(model.parameters(), lr=lr)
        train(model, toy(), optimizer=optimizer, epochs=1, checkpoint=tmp_path / "c.pt")

    run(8, 0.1)
    run(8, 0.1)
    with pytest.raises(StorageError, match=r"shape of f\.0\.weight was \[8, 3\], is \[9, 3\]"):
        run(9, 0.1)
    with pytest.raises(StorageError, match=r"lr was \[0\.1\], is \[0\.2\]"):
        run(8, 0.2)


class Malicious:
    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_damaged_or_malicious_checkpoint(tmp_path):
    file = tmp_path / "c.pt"
    want = fit(file)
    whole = file.read_bytes()
    for data in [b"", b"nonsense", whole[: len(whole) // 2], whole[:-1], whole[100:]]:
        file.write_bytes(data)
        with pytest.raises(StorageError, match=r"c\.pt cannot be read.*delete it"):
            fit(file)
    chance = random.Random(0)
    seen = 0
    for _ in range(60):  # a flipped bit is seen, or lies where it does no harm
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        try:
            assert_same_run(fit(file), want)
        except StorageError:
            seen += 1
    assert seen > 30
    for value in [Malicious(tmp_path / "ran"), [1, 2], {"other": 1}]:
        torch.save(value, file)
        with pytest.raises(StorageError, match=r"c\.pt cannot be read"):
            fit(file)
    assert not (tmp_path / "ran").exists()


def test_full_disk_keeps_the_checkpoint_before(tmp_path):
    file = tmp_path / "c.pt"
    with pytest.raises(Interrupt):
        fit(file, interrupt_at=10)
    before = file.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(StorageError, match="File too large.*one before it is whole"):
            fit(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_bytes() == before and [f.name for f in tmp_path.iterdir()] == ["c.pt"]
    assert_same_run(fit(file), fit())


@pytest.mark.slow
def test_kill_and_resume_gives_the_same_bits(tmp_path):
    script = Path(__file__).parent / "kill" / "training.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr
    kills, advances = map(int, done.stdout.split())
    assert kills >= 20 and advances >= 10


# torch.compile


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of inductor itself
def test_compile_gives_the_same_losses():
    x, y = toy()

    def losses(compile: bool) -> list[float]:
        model = Regression(dropout=0.0)
        optimizer = SGD(model.parameters(), lr=0.1)
        history = train(
            model, (x, y), optimizer=optimizer, epochs=4, batch_size=12, compile=compile
        )
        model.predict(x)
        assert not any("_orig_mod" in name for name in model.state_dict())
        return history.loss

    torch._dynamo.reset()
    try:
        got = losses(True)
    except torch._inductor.exc.InductorError as error:
        pytest.skip(f"no working C++ compiler: {error}")
    assert got == pytest.approx(losses(False), abs=1e-4)


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_smaller_last_batch_does_not_recompile_every_epoch(monkeypatch):
    compiled = []
    real = torch.compile

    def backend(graph, example):
        compiled.append(example)
        return graph.forward

    monkeypatch.setattr(torch, "compile", lambda model: real(model, backend=backend))
    torch._dynamo.reset()
    model = Regression()
    train(
        model,
        toy(44),
        optimizer=SGD(model.parameters(), lr=0.1),
        epochs=5,
        batch_size=12,
        validation=lambda: 0.0,
        compile=True,
    )
    assert len(compiled) <= 2


class _FailsWhenCompiled(nn.Module):
    """NaN inside torch.compile, a finite loss outside: a singular kernel matrix behaves so."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        loss = (self.w * x).square().mean()
        return loss * torch.nan if torch.compiler.is_compiling() else loss


def test_a_step_that_fails_only_when_compiled_is_repeated_without(monkeypatch):
    model = _FailsWhenCompiled()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    history = train(model, (torch.ones(4, 1),), optimizer=optimizer, epochs=3, compile=True)
    assert history.loss[-1] < history.loss[0]

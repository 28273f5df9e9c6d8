import io
import random
import resource
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest
import torch

from due.gp import InducingGP, StudentT
from due.methods import DUE
from due.rows.source import Table
from due.storage import checkpoint
from due.storage.atomic import StorageError
from due.training import Recipe, loop

from .toys import Interrupt, Regression, assert_same_run, run, wave


def test_resume_is_exact_from_any_step(tmp_path):
    want = run()
    chance = random.Random(0)
    for trial in range(6):
        file = tmp_path / f"{trial}.pt"
        interrupts = 0
        while True:  # interrupted again and again
            try:
                got = run(file, interrupt_at=chance.randint(2, 30))
                break
            except Interrupt:
                interrupts += 1
        assert interrupts > 0
        assert_same_run(got, want)


def test_the_runs_above_test_what_they_say():
    method, history = run()
    assert history.best_epoch is not None and history.best_epoch < len(history.loss) - 1
    assert history.stopped_early
    assert_same_run(run(), (method, history))


def test_checkpoints_do_not_change_the_run(tmp_path):
    assert_same_run(run(tmp_path / "c.pt", checkpoint_every=1), run())
    assert_same_run(run(tmp_path / "d.pt", checkpoint_every=None), run())


def test_a_finished_run_returns_without_a_pass(tmp_path):
    want = run(tmp_path / "c.pt")
    got = run(tmp_path / "c.pt", interrupt_at=1)
    assert_same_run(got, want)
    assert got[1] == want[1] and not got[0].training


def student() -> DUE:
    torch.manual_seed(0)
    gp = InducingGP(torch.zeros(5, 2))
    return DUE(torch.nn.Linear(1, 2), gp, StudentT(), bound="collapsed", noise="student")


def test_a_checkpoint_may_lack_what_only_the_end_of_training_fills(tmp_path):
    """As one of an earlier version does; what training has filled must be there."""
    x = torch.linspace(-2, 2, 40)[:, None]
    source, file = Table(x, x.sin()), tmp_path / "c.pt"
    loop.fit(student(), source, Recipe(epochs=2, batch_size=40), checkpoint=file)
    data = file.read_bytes()[: -len(checkpoint.MARK) - 32]
    for name, refused in (("level_z", False), ("nu", True)):
        saved = torch.load(io.BytesIO(data), weights_only=True)
        settings = saved.pop("settings")
        saved["method"] = {k: v for k, v in saved["method"].items() if not k.endswith(name)}
        settings = {k: v for k, v in settings.items() if not k.endswith(name)}
        checkpoint.write(file, settings, saved)
        again = partial(
            loop.fit, student(), source, Recipe(epochs=2, batch_size=40), checkpoint=file
        )
        if refused:
            with pytest.raises(StorageError, match="of another run"):
                again()
        else:
            assert len(again().loss) == 2


def test_an_infinite_number_must_be_one_of_a_fresh_method():
    """A bound of a parameter may be infinite; a fresh method may be on another device."""
    endless = {"bound": torch.tensor(torch.inf)}
    checkpoint._check_like(endless, endless, "method")
    for saved in ({"bound": torch.tensor(-torch.inf)}, {"bound": torch.tensor(torch.nan)}):
        with pytest.raises(ValueError, match=r"method\.bound is not a finite"):
            checkpoint._check_like(saved, endless, "method")
    elsewhere = {"w": torch.zeros(3, device="meta")}
    checkpoint._check_like({"w": torch.zeros(3)}, elsewhere, "method")


def test_resume_with_the_same_method(tmp_path):
    """As in a notebook: interrupted, then the same cell again."""
    method = Regression()
    with pytest.raises(Interrupt):
        run(tmp_path / "c.pt", interrupt_at=20, method=method)
    assert_same_run(run(tmp_path / "c.pt", method=method), run())


@pytest.mark.parametrize(
    "recipe",
    [
        Recipe(schedule="constant", weight_decay=0.1),
        Recipe(schedule="cosine", per="step"),
        Recipe(schedule="steps", milestones=(0.2, 0.5), per="step"),
        Recipe(schedule="one_cycle", warm_up=10),
        Recipe(batch_size="all", epochs=30),
        Recipe(accumulate=3),
        Recipe(precision="bf16"),
        Recipe(precision="fp16"),
    ],
    ids=str,
)
@pytest.mark.parametrize("optimizer", ["adam", "adamw", "sgd"])
def test_resume_with_other_recipes(tmp_path, optimizer, recipe):
    recipe = recipe.over(Recipe(optimizer=optimizer, momentum=0.9, patience=20))
    want = run(recipe=recipe)
    with pytest.raises(Interrupt):
        run(tmp_path / "c.pt", interrupt_at=16, recipe=recipe)
    assert_same_run(run(tmp_path / "c.pt", recipe=recipe), want)


def test_checkpoint_by_the_clock(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "CHECKPOINT_SECONDS", 0.0)
    with pytest.raises(Interrupt):
        run(
            tmp_path / "deep" / "c.pt", interrupt_at=6, checkpoint_every=None
        )  # batch norm took one
    saved = torch.load(tmp_path / "deep" / "c.pt", weights_only=True)
    assert saved["steps"] == 4


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"seed": 1}, "seed was 0, is 1"),
        ({"recipe": Recipe(batch_size=9)}, "batch_size was 8, is 9"),
        ({"recipe": Recipe(epochs=9)}, "epochs was 8, is 9"),
        ({"recipe": Recipe(lr=0.1)}, r"lr was 0\.05, is 0\.1"),
        ({"recipe": Recipe(schedule="constant")}, "schedule was 'cosine', is 'constant'"),
        ({"source": Table(*wave(40))}, r"data\[0\] was \[41, 3\].*is \[40, 3\]"),
        ({"source": Table(*(-part for part in wave(41)))}, r"data\[1\] was \[41\]"),
        ({"held_out": Table(*wave(9))}, r"held-out data\[0\] was \[19, 3\].*is \[9, 3\]"),
        ({"held_out": None}, r"held-out data\[0\] was .*is absent"),
        ({"method": Regression(width=9)}, r"shape of f\.0\.weight was \[16, 3\], is \[9, 3\]"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, change, word):
    run(tmp_path / "c.pt")
    with pytest.raises(StorageError, match=rf"c\.pt is of another run: .*{word}.*delete it"):
        run(tmp_path / "c.pt", **change)


class Malicious:
    def __init__(self, trace: Path):
        self.trace = trace

    def __reduce__(self):
        return Path.touch, (self.trace,)


def test_a_damaged_or_malicious_checkpoint_is_refused(tmp_path):
    file = tmp_path / "c.pt"
    want = run(file)
    whole = file.read_bytes()
    for data in [b"", b"nonsense", whole[: len(whole) // 2], whole[:-1], whole[100:]]:
        file.write_bytes(data)
        with pytest.raises(StorageError, match=r"c\.pt cannot be read.*delete it"):
            run(file)
    chance = random.Random(0)
    seen = 0
    for _ in range(60):  # a flipped bit is seen, or lies where it does no harm
        data = bytearray(whole)
        data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        file.write_bytes(data)
        try:
            assert_same_run(run(file), want)
        except StorageError:
            seen += 1
    assert seen > 30
    for value in [Malicious(tmp_path / "ran"), [1, 2], {"other": 1}]:
        torch.save(value, file)
        with pytest.raises(StorageError, match=r"c\.pt cannot be read"):
            run(file)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(("part", "name"), [("optimizer", "weight_decay"), ("schedule", "eta_min")])
def test_constants_that_the_recipe_did_not_give_are_refused(tmp_path, part, name):
    """With a checksum made right again; found by the fuzzer, in 747303d training went on."""
    file = tmp_path / "c.pt"
    with pytest.raises(Interrupt):
        run(file, interrupt_at=20)
    saved = torch.load(file, weights_only=True)
    where = saved[part]["param_groups"][0] if part == "optimizer" else saved[part]
    where[name] = -1e9
    checkpoint.write(file, saved.pop("settings"), saved)
    with pytest.raises(StorageError, match="does not fit this run"):
        run(file)


def test_a_best_epoch_that_nobody_judged_is_refused(tmp_path):
    """A raw IndexError in 747303d."""
    file = tmp_path / "c.pt"
    with pytest.raises(Interrupt):
        run(file, interrupt_at=20)
    saved = torch.load(file, weights_only=True)
    assert saved["history"]["best_epoch"] is not None
    saved["history"]["validation"] = []
    checkpoint.write(file, saved.pop("settings"), saved)
    with pytest.raises(StorageError, match=r"best_epoch is \d"):
        run(file)


def test_a_full_disk_keeps_the_checkpoint_before(tmp_path):
    file = tmp_path / "c.pt"
    with pytest.raises(Interrupt):
        run(file, interrupt_at=10)
    before = file.read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4000, hard))
    try:
        with pytest.raises(StorageError, match="File too large.*one before it is whole"):
            run(file)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert file.read_bytes() == before and [f.name for f in tmp_path.iterdir()] == ["c.pt"]
    assert_same_run(run(file), run())


@pytest.mark.slow
def test_kill_and_resume_gives_the_same_bits(tmp_path):
    script = Path(__file__).parent.parent / "kill" / "fitting.py"
    done = subprocess.run(
        [sys.executable, script, tmp_path], capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stderr
    kills, advances, hits = map(int, done.stdout.split())
    assert kills >= 20 and advances >= 10 and hits >= 5  # hits: kills in the act of writing


def test_resume_between_two_refreshes_of_the_norms(tmp_path):
    """What the norms keep in between is in the checkpoint, but not in a run that has not begun."""
    from due.lipschitz import constrain

    recipe = Recipe(refresh=5)

    def bounded():
        method = Regression()
        constrain(method.f, 0.9, wave(4)[0])
        return method

    want = run(recipe=recipe, method=bounded())
    with pytest.raises(Interrupt):
        run(tmp_path / "c.pt", interrupt_at=20, recipe=recipe, method=bounded())
    assert_same_run(run(tmp_path / "c.pt", recipe=recipe, method=bounded()), want)

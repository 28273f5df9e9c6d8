import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from due.rows.source import Table, draws, n_steps, plan

from .toys import counted

SIZES = st.none() | st.integers(1, 70)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), SIZES, st.integers(0, 2**40), st.integers(0, 5))
def test_each_epoch_covers_every_row_once(N, batch_size, seed, epoch):
    rows = counted(N)
    batches = list(rows.batches(batch_size, seed, epoch))
    assert sorted(torch.cat([x for x, _ in batches]).tolist()) == list(range(N))
    assert all(torch.equal(y, 2 * x) for x, y in batches)
    assert len(batches) == n_steps(N, batch_size)
    if batch_size is not None and min(N, batch_size) > 1:
        assert all(2 <= len(x) <= batch_size + 1 for x, _ in batches)
    for start in range(len(batches)):  # a resumed epoch goes on in the same order
        rest = rows.batches(batch_size, seed, epoch, start)
        assert [x.tolist() for x, _ in rest] == [x.tolist() for x, _ in batches[start:]]


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
    assert [len(x) for x, _ in counted(N).batches(batch_size, 0, 0)] == sizes


def test_a_full_batch_is_all_rows_in_their_order_and_its_x_a_copy():
    rows = counted(10)
    for batch in rows.batches(None, seed=0, epoch=3):
        assert all(torch.equal(a, b) for a, b in zip(batch, rows.data, strict=True))
        batch[0].zero_()
    assert torch.equal(rows.data[0], counted(10).data[0])


def test_as_many_rows_of_each():
    with pytest.raises(ValueError, match=r"\[3, 2\] rows"):
        Table(torch.zeros(3, 3), torch.zeros(2))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), SIZES, st.integers(1, 5), st.integers(0, 3))
def test_the_shares_of_all_processes_are_the_batches_of_one(N, batch_size, ranks, start):
    rows = Table(torch.arange(N), 2 * torch.arange(N), torch.arange(N) / 7)
    start = min(start, n_steps(N, batch_size) - 1)
    whole = list(rows.batches(batch_size, 3, 1, start))
    shares = [rows.share(r, ranks) for r in range(ranks)]
    assert all(len(share) == N for share in shares)
    parts = [list(share.batches(batch_size, 3, 1, start)) for share in shares]
    for batch, *of_ranks in zip(whole, *parts, strict=True):
        lengths = [len(x) for x, _, _ in of_ranks]
        assert max(lengths) - min(lengths) <= 1
        for together, separate in zip(batch, zip(*of_ranks, strict=True), strict=True):
            assert torch.cat(separate).sort().values.equal(together.sort().values)


def shift(x: Tensor, generator: torch.Generator) -> Tensor:
    return x + torch.rand(x.shape, generator=generator)


def test_the_transform_acts_on_training_batches_only():
    x = torch.zeros(10, 2)
    rows = Table(x, torch.arange(10), transform=shift)
    as_they_are = [rows.whole(), rows.some(4, 0), rows.take(torch.arange(3)), *rows.chunks(6)]
    assert [len(part[0]) for part in as_they_are] == [10, 4, 3, 6, 4]
    assert all((part[0] == 0).all() for part in as_they_are)
    for size in (4, None):
        assert all((batch[0] > 0).any() for batch in rows.batches(size, 0, 0))
    joined = rows.part(torch.arange(5)).join(rows)
    assert len(joined) == 15 and all((b[0] > 0).any() for b in joined.batches(5, 0, 0))


def test_the_transform_is_drawn_anew_per_step_epoch_seed_and_process():
    rows = Table(torch.zeros(8, 1), torch.zeros(8), transform=shift)

    def drawn(seed: int, epoch: int, rank: int) -> list[float]:
        batches = rows.share(rank, 2).batches(4, seed, epoch)
        return [value for x, _ in batches for value in x[:, 0].tolist()]

    keys = [(seed, epoch, rank) for seed in (0, 1) for epoch in (0, 1) for rank in (0, 1)]
    values = [value for key in keys for value in drawn(*key)]
    assert len(set(values)) == len(values) == 8 * 4
    assert drawn(0, 0, 0) == drawn(0, 0, 0)


def test_the_transform_is_not_drawn_like_the_order():
    (_, order), *_ = plan(50, 50, seed=4, epoch=2)
    first = torch.randperm(50, generator=draws(seed=4, epoch=2, step=0))
    assert not torch.equal(order, first)


def test_other_rows_have_another_fingerprint():
    x = torch.randn(3000, 2)
    rows = Table(x, x[:, 0])
    assert rows.fingerprint() == Table(x.clone(), x[:, 0].clone()).fingerprint()
    assert rows.fingerprint() != Table(-x, x[:, 0]).fingerprint()
    assert rows.fingerprint() != Table(x.double(), x[:, 0]).fingerprint()
    assert rows.fingerprint() != Table(x, x[:, 0], torch.ones(3000)).fingerprint()

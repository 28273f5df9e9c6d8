import pytest
import torch
from torch.nn.functional import pad

from due.rows.images import Images, crop_and_flip, pixel_moments


@pytest.fixture
def x():
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (20, 3, 9, 7), generator=generator, dtype=torch.uint8)


def test_moments_are_those_of_the_pixels(x):
    mean, std = pixel_moments(x)
    pixels = x.double().transpose(0, 1).flatten(1) / 255
    torch.testing.assert_close(mean.double(), pixels.mean(1), rtol=1e-6, atol=0)
    torch.testing.assert_close(std.double(), pixels.std(1, correction=0), rtol=1e-6, atol=0)


def test_rows_are_normalised_and_others_by_the_same_numbers(x):
    source = Images(x, torch.arange(20))
    taken, y = source.whole()
    assert y.tolist() == list(range(20))
    torch.testing.assert_close(
        taken.transpose(0, 1).flatten(1).mean(1), torch.zeros(3), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        taken.transpose(0, 1).flatten(1).std(1), torch.ones(3), atol=1e-2, rtol=0
    )
    foreign = Images(255 - x, torch.arange(20), source.mean, source.std)
    want = ((255 - x.float()) / 255 - source.mean[:, None, None]) / source.std[:, None, None]
    torch.testing.assert_close(foreign.whole()[0], want, rtol=1e-4, atol=1e-5)


def test_a_crop_is_a_window_of_the_padded_image_perhaps_mirrored(x):
    moved = crop_and_flip(x, torch.Generator().manual_seed(1), pad=2)
    wide, seen = pad(x, (2, 2, 2, 2)), set()
    for image, original in zip(moved, wide, strict=True):
        windows = {
            (i, j, flip): (w.flip(-1) if flip else w)
            for i in range(5)
            for j in range(5)
            for w in [original[:, i : i + 9, j : j + 7]]
            for flip in (False, True)
        }
        places = [place for place, window in windows.items() if torch.equal(window, image)]
        assert len(places) == 1
        seen.add(places[0])
    assert len({i for i, *_ in seen}) > 2 and len({flip for *_, flip in seen}) == 2


def test_batches_are_augmented_rows_for_the_start_are_not(x):
    source = Images(x, torch.arange(20), augment=crop_and_flip)
    plain = Images(x, torch.arange(20), source.mean, source.std)
    for images, y in source.batches(8, seed=3, epoch=1):
        assert not torch.equal(images, plain.take(y)[0])
    assert torch.equal(source.take(torch.arange(5))[0], plain.take(torch.arange(5))[0])
    again = [images for images, _ in source.batches(8, seed=3, epoch=1)]
    assert all(map(torch.equal, again, (b for b, _ in source.batches(8, seed=3, epoch=1))))
    assert not torch.equal(again[0], next(source.batches(8, seed=3, epoch=2))[0])
    assert source.fingerprint() != plain.fingerprint()


def test_shares_make_up_the_batch(x):
    source = Images(x, torch.arange(20))
    whole = [set(y.tolist()) for _, y in source.batches(8, seed=0, epoch=0)]
    halves = [source.share(rank, 2).batches(8, seed=0, epoch=0) for rank in (0, 1)]
    joined = [set(a[1].tolist()) | set(b[1].tolist()) for a, b in zip(*halves, strict=True)]
    assert joined == whole


@pytest.mark.parametrize("bad", [torch.zeros(2, 3, 4, 4), torch.zeros(2, 4, 4, dtype=torch.uint8)])
def test_other_than_bytes_are_refused(bad):
    with pytest.raises(ValueError, match=r"give uint8 pixels 0 … 255 of shape"):
        Images(bad, torch.zeros(2))

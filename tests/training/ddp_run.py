"""Trains a small DUE, alone or under torchrun, and writes its state: python ddp_run.py KIND DIR."""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from due import DUE, Recipe, Table, constrain, fit
from due.gp import InducingGP, Softmax
from due.networks import FCResNet, WideResNet
from due.rows.images import Images, crop_and_flip


def vectors():
    """float64, no batch norm, no dropout; 205 rows leave a last batch of 13."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(205, 3, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    f = constrain(FCResNet(3, 16, 2).double(), 0.95, x[:2])
    return DUE(f, InducingGP(torch.zeros(8, 16), 3), Softmax(3)), Table(x, y), 50


def images():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (70, 1, 12, 12), generator=generator, dtype=torch.uint8)
    y = torch.arange(70) % 3
    f = constrain(WideResNet(10, 1, 1, dropout=0.1, stride=2), 3, torch.zeros(2, 1, 12, 12))
    return (
        DUE(f, InducingGP(torch.zeros(6, 64), 3), Softmax(3)),
        Images(x, y, augment=crop_and_flip),
        9,
    )


def main(kind: str, out: Path) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    method, source, steps = {"vectors": vectors, "images": images}[kind]()
    batch = 32
    rank = int(os.environ.get("RANK", "0"))
    if rank:  # what the first process starts from must reach the others
        with torch.no_grad():
            for p in method.parameters():
                p.add_(1.0)
    epochs = -(-steps // -(-len(source) // batch))

    def after(epoch: int) -> None:
        if os.environ.get("DIE_AFTER") == str(epoch) and rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)

    recipe = Recipe(optimizer="sgd", lr=0.05, batch_size=batch, epochs=epochs, refresh=3)
    file = out / "checkpoint.pt" if "CHECKPOINT" in os.environ else None
    history = fit(method, source, recipe, checkpoint=file, checkpoint_every=2, after_epoch=after)
    assert isinstance(method.f, nn.Module)
    torch.save({**method.state_dict(), "loss": history.loss}, out / f"{kind}-{rank}.pt")


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))

"""Trains small DUEs, alone or under torchrun, and writes their states:

python ddp_run.py KIND[,KIND] DIR
"""

import os
import signal
import sys
import time
from pathlib import Path

import torch

from due import DUE, Images, Recipe, Table, constrain, fit
from due.gp import InducingGP, Softmax
from due.networks import FCResNet, WideResNet
from due.rows import crop_and_flip
from due.storage import checkpoint as checkpoints

RANK = int(os.environ.get("RANK", "0"))


def vectors(inducing="free"):
    """float64, no batch norm, no dropout; 205 rows leave a last batch of 13."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(205, 3, generator=generator, dtype=torch.float64)
    y = (x[:, 0] + x[:, 1] > 0).long() + (x[:, 2] > 1).long()
    f = constrain(FCResNet(3, 16, 2).double(), 0.95, x[:2])
    gp = InducingGP(torch.zeros(8, 16), 3)
    return DUE(f, gp, Softmax(3), inducing=inducing), Table(x, y), 50


def tied():
    """What `start` sets are buffers, of sizes that only the first process knows."""
    method, source, _ = vectors("tied")
    return method, source, 7


def images():
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (70, 1, 12, 12), generator=generator, dtype=torch.uint8)
    y = torch.arange(70) % 3
    f = constrain(WideResNet(10, 1, 1, dropout=0.1, stride=2), 3, torch.zeros(2, 1, 12, 12))
    method = DUE(f, InducingGP(torch.zeros(6, 64), 3), Softmax(3))
    return method, Images(x, y, augment=crop_and_flip), 9


def refuse(*args, **kwargs):
    raise AssertionError(f"process {RANK} did what the first one has to do")


def train(kind: str, out: Path) -> None:
    torch.manual_seed(0)
    method, source, steps = {"vectors": vectors, "images": images, "tied": tied}[kind]()
    batch = 32
    if RANK:  # what the first process starts from must reach the others
        method.start = checkpoints.write = refuse
        with torch.no_grad():
            for tensor in (*method.parameters(), *method.f.buffers()):
                tensor.add_(1)
    epochs = -(-steps // -(-len(source) // batch))

    def after(epoch: int) -> None:
        if os.environ.get("DIE_AFTER") == str(epoch) and RANK == 1:
            (out / "killed").write_text(str(time.time()))
            os.kill(os.getpid(), signal.SIGKILL)

    pieces = int(os.environ.get("ACCUMULATE", "1"))
    recipe = Recipe(
        optimizer="sgd", lr=0.05, batch_size=batch, epochs=epochs, refresh=3, accumulate=pieces
    )
    file = out / "checkpoint.pt" if "CHECKPOINT" in os.environ else None
    history = fit(method, source, recipe, checkpoint=file, checkpoint_every=2, after_epoch=after)
    torch.save({**method.state_dict(), "loss": history.loss}, out / f"{kind}-{RANK}.pt")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for kind in sys.argv[1].split(","):
        train(kind, Path(sys.argv[2]))

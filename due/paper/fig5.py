"""Figure 5: channel-wise Lipschitz constants |γ| / √(var + ε) of batch norm, without constraint.

Of every batch-norm layer of softmax WRNs that were trained without any bound.
"""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray

from due.experiments.artefact import Options, Report, heading
from due.experiments.files import write_files
from due.paper import CATALOGUE
from due.paper.image_models import PRESETS, chosen
from due.paper.image_results import complete, describe, found_lines, plain

RUNS = {"paper": 15, "laptop": 3, "smoke": 1}
PRINTED = {"max": 12, "above_one": 0.95}


@dataclass(frozen=True)
class Fig5:
    """The softmax models of table2."""

    presets: ClassVar = PRESETS
    title: str = CATALOGUE["fig5"].title

    def reproduce(self, name: str, options: Options) -> Report:
        """Train what is missing; write and print the numbers and the histogram."""
        torch.set_num_threads(options.threads or 1)
        settings = chosen(options.preset, options.data)
        runs = range(options.seeds or RUNS[options.preset])
        journal = complete(name, options, settings, ["softmax"], runs)
        lines = found_lines(journal, settings, "softmax")
        each = [np.array(line["numbers"]["batch_norm"]) for line in lines]
        values = np.concatenate(each)
        networks = f"{len(each)} network{'s' if len(each) > 1 else ''}"
        numbers = {
            "networks": len(each),
            "constants": len(values),
            "max": float(values.max()),
            "median": float(np.median(values)),
            "above_one": float((values > 1).mean()),
            "as_printed": PRINTED,
        }
        text = (
            f"{len(values):,} channels of {networks}: largest constant "
            f"{values.max():.2f}, median {np.median(values):.2f}, above one "
            f"{100 * (values > 1).mean():.1f} %\n"
            "as printed (CIFAR-10, 15 WRN-28-10): largest around 12, above one 95 %\n\n"
            + describe(settings)
        )
        report = {**heading(name, self.title, options), "settings": plain(settings), **numbers}
        png = draw(values, f"{settings.data}, preset {settings.preset}, {networks}")
        files = write_files(options.out, f"{name}-{settings.data}", json=report, txt=text, png=png)
        return Report(text, files)


def draw(values: NDArray[np.float64], title: str) -> Figure:
    """Histogram, with 1 marked."""
    figure = Figure(figsize=(6, 3.6), layout="constrained")
    ax = figure.subplots()
    ax.hist(values, bins=60, range=(0, float(values.max())), color="tab:blue")
    ax.axvline(1, color="0.3", lw=1, ls="--")
    ax.set(xlabel="Lipschitz constant of a batch-norm channel", ylabel="channels", title=title)
    return figure


ARTEFACT = Fig5()

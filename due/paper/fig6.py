"""Figure 6: training features and inducing points of DUE together, by t-SNE.

Do the inducing points sit where the data is? Beside the picture: how far each is from its nearest
training feature, against how far training features are from theirs.
"""

from dataclasses import dataclass
from typing import ClassVar, cast

import numpy as np
import torch
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial import KDTree
from sklearn.manifold import TSNE

from due.experiments.artefact import Options, Report, heading
from due.experiments.files import write_files
from due.experiments.journal import Json
from due.gp import evaluate
from due.methods import DUE
from due.paper import CATALOGUE
from due.paper.image_models import PRESETS, ImageSettings, chosen, rows, trained
from due.paper.image_results import describe, plain

POINTS = {"paper": 5000, "laptop": 2000, "smoke": 100}


@dataclass(frozen=True)
class Fig6:
    """The model of table2 with seed 0."""

    presets: ClassVar = PRESETS
    title: str = CATALOGUE["fig6"].title

    def reproduce(self, name: str, options: Options) -> Report:
        """Train the model if it is missing; write numbers and picture."""
        torch.set_num_threads(options.threads or 1)
        settings = chosen(options.preset, options.data)
        method = cast(DUE, trained("due", settings, 0, options.out).method)
        x, y, *_ = rows(settings).train.some(POINTS[options.preset], 0)
        h = evaluate(method.f, x).double().cpu().numpy()
        Z = method.gp.Z.detach().double().cpu().numpy()
        nearest = nearest_classes(h, Z, y.numpy())
        numbers = {**distances(h, Z), "nearest_classes": nearest}
        places = TSNE(init="pca", random_state=0).fit_transform(np.concatenate([h, Z]))
        report = {**heading(name, self.title, options), "settings": plain(settings), **numbers}
        png = draw(places, y.numpy(), len(Z), settings)
        text = (
            f"distance to the nearest of {len(h):,} training features: inducing points "
            f"{numbers['inducing_median']:.3g} (median), training features "
            f"{numbers['training_median']:.3g};\nthese nearest features are of {len(set(nearest))} "
            f"classes, for {len(Z)} inducing points\n\n{describe(settings)}"
        )
        files = write_files(options.out, f"{name}-{settings.data}", json=report, txt=text, png=png)
        return Report(text, files)


def distances(h: NDArray[np.float64], Z: NDArray[np.float64]) -> Json:
    """Median distance to the nearest training feature, of inducing points and of the features."""
    tree = KDTree(h)
    return {
        "inducing_median": float(np.median(tree.query(Z)[0])),
        "training_median": float(np.median(tree.query(h, k=2)[0][:, 1])),
    }


def nearest_classes(
    h: NDArray[np.float64], Z: NDArray[np.float64], y: NDArray[np.int64]
) -> list[int]:
    """The class of the training feature next to each inducing point."""
    return [int(label) for label in y[KDTree(h).query(Z)[1]]]


def draw(
    places: NDArray[np.float64], y: NDArray[np.int64], M: int, settings: ImageSettings
) -> Figure:
    """Features by class, inducing points as stars."""
    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    ax = figure.subplots()
    points = ax.scatter(places[:-M, 0], places[:-M, 1], c=y, cmap="tab10", s=5, alpha=0.7)
    stars: Json = {"marker": "*", "s": 180, "c": "black", "edgecolors": "white"}
    ax.scatter(places[-M:, 0], places[-M:, 1], label="inducing points", **stars)
    figure.colorbar(points, ax=ax, label="class", ticks=range(10))
    ax.set(xticks=[], yticks=[])
    ax.set_title(f"{settings.data}, preset {settings.preset}: features and {M} inducing points")
    ax.legend(loc="upper right")
    return figure


ARTEFACT = Fig6()

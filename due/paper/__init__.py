"""Figures and tables of the paper, and ours beside them: one module each, imported when it runs."""

from typing import NamedTuple


class Entry(NamedTuple):
    """What `due reproduce` must know of an artefact before it imports its module."""

    title: str
    presets: tuple[str, ...] = ("default", "paper", "smoke")
    takes: tuple[str, ...] = ("seeds", "threads")  # options beyond --out, --preset and --smoke


PLAIN = ("default", "smoke")
COSINES = ("default", "paper", "notebook", "smoke")
TRIALS = ("trials", "methods", "data", "jobs")
IMAGES = ("laptop", "paper", "smoke")
MODELS = ("seeds", "threads", "methods", "data")
CATALOGUE = {
    "fig1": Entry("Uncertainty between the data at 1K and 1M rows: DUE and SNGP", COSINES),
    "fig2": Entry("Feature collapse: what a free network puts on top of data", PLAIN),
    "fig3": Entry("Two moons: where softmax, GPDNN and DUE are certain"),
    "fig4": Entry(
        "Treatment effects with 95 % intervals: how many miss, DUE and BTARNet",
        PLAIN,
        ("seeds", "jobs"),
    ),
    "fig5": Entry(
        "Lipschitz constants of batch norm in networks without constraint",
        IMAGES,
        ("seeds", "threads", "data"),
    ),
    "fig6": Entry("Features of images and inducing points together", IMAGES, ("threads", "data")),
    "fig7": Entry(
        "Uncertainty between the data: exact GP at 1K, Deep Ensemble at 1K and 1M rows", COSINES
    ),
    "table1": Entry("Deep kernels on a bounded network and on plain ones: images", IMAGES, MODELS),
    "table2": Entry("Images: runtime, accuracy, foreign images; DUE and rivals", IMAGES, MODELS),
    "table3": Entry(
        "Treatment effects on IHDP: error after deferral, DUE and rivals", PLAIN, TRIALS
    ),
    "table4": Entry(
        "Images: DUE by its number of inducing points", IMAGES, ("seeds", "threads", "data")
    ),
    "table5": Entry("Images: calibration error of DUE and rivals", IMAGES, MODELS),
    "gap": Entry("What decides the widths of fig1: length scale, M, dropout", COSINES),
    "choices": Entry("What each choice buys on IHDP: DUE with something changed", PLAIN, TRIALS),
    "collapse": Entry("Why deep kernels collapse: terms of the likelihood, far rows"),
    "constraints": Entry("Ways to keep distances: norm, penalty, reversible, none"),
}
TABLE3_METHODS = (
    *("due", "due-paper", "bart", "btarnet", "bcevae", "dklite", "tarnet-ensemble"),
    *("arm-gp", "s-learner", "t-learner"),
)

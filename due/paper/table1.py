"""Table 1: two deep kernels on a bi-Lipschitz network and on plain ones.

SV-DKL and GPDNN, each on a WRN with bounded layers, on the same WRN without a bound, and on VGG-19
as in the paper, with DUE's training. GPDNN on the bounded network is DUE. The WRN without a bound
is ours: it tells what the bound does from what the network does.
"""

from collections.abc import Mapping

from due.experiments.journal import Json
from due.experiments.layout import Table
from due.paper import CATALOGUE
from due.paper.image_models import ImageSettings
from due.paper.image_results import ImageTable, spread
from due.paper.table2 import of

NETWORKS = ("WRN, bounded", "WRN, no bound", "VGG, no bound")
ROWS = {
    "SV-DKL": ("svdkl", "svdkl-plain", "svdkl-vgg"),
    "GPDNN": ("due", "gpdnn-plain", "gpdnn"),
}
PRINTED = {  # AUROC and accuracy: bi-Lipschitz, then VGG
    "SV-DKL": ("0.959 ± 0.001", "95.7 ± 0.06", "0.498 ± 0.001", "93.6 ± 0.05"),
    "GPDNN": ("0.958 ± 0.005", "95.6 ± 0.04", "0.876 ± 0.004", "93.7 ± 0.10"),
}
NOTES = (
    "AUROC by entropy. Bounded: every layer of the WRN is held at most c; GPDNN on it is DUE. The\n"
    "WRN without a bound is not in the paper. VGG-19 has fewer channels in the laptop preset.\n"
    "As printed: CIFAR-10 against SVHN.",
)


def tables(models: Mapping[str, list[Json]], settings: ImageSettings) -> list[Table]:
    """One row per deep kernel."""
    header = [""]
    for where in NETWORKS:
        header += [f"{where}: AUROC", "accuracy %"]
    header += ["printed, bounded: AUROC", "accuracy %", "printed, VGG: AUROC", "accuracy %"]
    body = []
    for name, kinds in ROWS.items():
        cells = []
        for kind in kinds:
            lines = models.get(kind, [])
            cells += [spread(of(lines, "entropy")) if lines else "–"]
            cells += [spread([line["accuracy"] for line in lines], 2, 100) if lines else "–"]
        body.append([name, *cells, *PRINTED[name]])
    return [Table(f"Table 1, {settings.data}, preset {settings.preset}", header, body)]


ARTEFACT = ImageTable(
    CATALOGUE["table1"].title,
    tuple(kind for kinds in ROWS.values() for kind in kinds),
    tables,
    NOTES,
)

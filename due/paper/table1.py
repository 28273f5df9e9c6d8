"""Table 1: two deep kernels on a bi-Lipschitz network and on a plain one.

SV-DKL and GPDNN, each on a WRN with bounded layers and on VGG-19, with DUE's training. GPDNN on
the bounded network is DUE.
"""

from collections.abc import Mapping

from due.experiments.journal import Json
from due.experiments.layout import Table
from due.paper import CATALOGUE
from due.paper.image_models import ImageSettings
from due.paper.image_results import ImageTable, spread
from due.paper.table2 import of

ROWS = {"SV-DKL": ("svdkl", "svdkl-vgg"), "GPDNN": ("due", "gpdnn")}
PRINTED = {  # AUROC and accuracy: bi-Lipschitz, then not
    "SV-DKL": ("0.959 ± 0.001", "95.7 ± 0.06", "0.498 ± 0.001", "93.6 ± 0.05"),
    "GPDNN": ("0.958 ± 0.005", "95.6 ± 0.04", "0.876 ± 0.004", "93.7 ± 0.10"),
}
NOTES = (
    "AUROC by entropy. bi-Lipschitz: a WRN with every layer bounded by c; GPDNN on it is DUE. "
    "Not: VGG-19\nof fewer channels in the laptop preset. As printed: CIFAR-10 against SVHN.",
)


def tables(models: Mapping[str, list[Json]], settings: ImageSettings) -> list[Table]:
    """One row per deep kernel."""
    header = ["", "bi-Lipschitz: AUROC", "accuracy %", "not: AUROC", "accuracy %"]
    header += ["printed: AUROC", "accuracy %", "not: AUROC", "accuracy %"]
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
    CATALOGUE["table1"].title, ("due", "gpdnn", "svdkl", "svdkl-vgg"), tables, NOTES
)

"""Table 5: expected calibration error with 15 bins, without any scaling afterwards."""

from collections.abc import Mapping

from due.experiments.journal import Json
from due.experiments.layout import Table
from due.paper import CATALOGUE
from due.paper.image_models import ImageSettings
from due.paper.image_results import TITLES, ImageTable, spread

PRINTED = {"due": "0.018 ± 0.0015", "duq": "0.034 ± 0.002", "sngp": "0.018 ± 0.001"}
NOTES = ("ECE: 15 bins of equal width. As printed: CIFAR-10 with a WRN-28-10.",)


def tables(models: Mapping[str, list[Json]], settings: ImageSettings) -> list[Table]:
    """One row per method."""
    header = ["method", "seeds", "ECE", "NLL", "accuracy %", "ECE, as printed"]
    body = [
        [
            TITLES[kind],
            str(len(lines)),
            spread([line["ece"] for line in lines], 4),
            spread([line["nll"] for line in lines]),
            spread([line["accuracy"] for line in lines], 2, 100),
            PRINTED.get(kind, "–"),
        ]
        for kind, lines in models.items()
    ]
    return [Table(f"Table 5, {settings.data}, preset {settings.preset}", header, body)]


ARTEFACT = ImageTable(CATALOGUE["table5"].title, ("due", "duq", "sngp", "softmax"), tables, NOTES)

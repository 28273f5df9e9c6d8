"""Table 2: runtime, accuracy and OOD detection of DUE and its rivals on images.

The paper's score is the entropy of the predicted classes. Beside it stands each method's best
score: for DUE always its OOD score, for the others whichever of their scores is best on this very
pair, which favours them. "same panel" is DUE's OOD score on the other method's network: what of
DUE's lead is the score, and what the network.
"""

from collections.abc import Mapping

from due.experiments.journal import Json
from due.experiments.layout import Table
from due.paper import CATALOGUE
from due.paper.image_models import ImageSettings
from due.paper.image_results import ENSEMBLE, TITLES, ImageTable, spread

PRINTED = {  # runtime, accuracy in %, AUROC against SVHN
    "ensemble": ("5x", "96.6 ± 0.03", "0.967 ± 0.005"),
    "softmax": ("1x", "96.2 ± 0.01", "0.932 ± 0.008"),
    "duq": ("3.5x", "94.9 ± 0.04", "0.940 ± 0.003"),
    "sngp": ("1x", "96.0 ± 0.04", "0.940 ± 0.006"),
    "svdkl": ("2x", "95.7 ± 0.06", "0.959 ± 0.001"),
    "due": ("1x", "95.6 ± 0.04", "0.958 ± 0.005"),
}
KINDS = ("softmax", "due", "sngp", "ddu", ENSEMBLE, "duq", "svdkl")
OURS = "ood_score"
NOT_OWN = ("panel", "views")
PARTS = {
    "variance": "the latent variance",
    "plain_entropy": "the entropy without it",
    "energy": "the energy of the means",
}
NOTES = (
    "AUROC: foreign images by entropy, as in the paper, and by the best score: for DUE its OOD "
    "score,\nfor others the best of their scores on this pair, found with hindsight. Same panel: "
    "DUE's OOD score on\nthe other method's network. Third: the best score of that column on "
    "foreign images that no choice\nwas made with. Mistakes: AUROC of the entropy for wrong "
    "answers. Runtime: wall clock\nof an epoch ÷ softmax's, of use only if the machine was idle."
    "\nAs printed: the paper's WRN-28-10, CIFAR-10 against SVHN, AUROC by entropy.",
)


def tables(models: Mapping[str, list[Json]], settings: ImageSettings) -> list[Table]:
    """One row per method; DUE's two answers; the AUROC of each view of its OOD score."""
    lines = [line for line in models.get("due", []) if line.get("flagged")]
    both = [two_questions(lines)] if lines else []
    return [compare(models, settings), *both, views(models)]


def compare(models: Mapping[str, list[Json]], settings: ImageSettings) -> Table:
    """One row per method."""
    header = ["method", "seeds", "runtime", "accuracy %", "entropy", "best score", "its name"]
    header += ["same panel", "third", "mistakes", "printed: runtime", "accuracy %", "AUROC"]
    body = []
    for kind, lines in models.items():
        best = best_score(kind, lines)
        runs = lines[0]["members"] if kind == ENSEMBLE else len(lines)
        body.append(
            [
                TITLES[kind],
                str(runs),
                _runtime(kind, models, lines),
                spread([line["accuracy"] for line in lines], 2, 100),
                spread(of(lines, "entropy")),
                spread(of(lines, best)),
                best.replace("_", " "),
                spread(of(lines, "panel")) if "panel" in lines[0]["auroc"]["foreign"] else "–",
                spread(of(lines, best, "third")),
                spread([line["mistakes"]["entropy"] for line in lines]),
                *PRINTED.get(kind, ("–", "–", "–")),
            ]
        )
    return Table(f"Table 2, {settings.data}, preset {settings.preset}", header, body)


def two_questions(lines: list[Json]) -> Table:
    """What DUE's entropy and OOD score find, and how often known images are flagged."""
    rows = {
        "wrong answers, AUROC of the entropy": [line["mistakes"]["entropy"] for line in lines],
        "wrong answers, AUROC of the OOD score": [line["mistakes"][OURS] for line in lines],
        "foreign images, AUROC of the entropy": of(lines, "entropy"),
        "foreign images, AUROC of the OOD score": of(lines, OURS),
    }
    for score, words in PARTS.items():
        if all(score in line["auroc"]["foreign"] for line in lines):
            rows[f"foreign images, AUROC of {words}"] = of(lines, score)
    for alpha in lines[0]["flagged"]:
        share = [line["flagged"][alpha] for line in lines]
        rows[f"share of known test images with ood_pvalue ≤ {alpha}"] = share
    return Table("DUE", ["", "value"], [[name, spread(found)] for name, found in rows.items()])


def views(models: Mapping[str, list[Json]]) -> Table:
    """AUROC of each view alone."""
    found = {
        kind: [line["auroc"]["foreign"]["views"] for line in lines]
        for kind, lines in models.items()
        if "views" in lines[0]["auroc"]["foreign"] and "energy" in lines[0]["auroc"]["foreign"]
    }
    stages = max((len(lines[0]) - 2 for lines in found.values()), default=0)
    header = ["network of", "energy", *(f"stage {k + 1}" for k in range(stages)), "features"]
    body = [
        [TITLES[kind], *(spread(list(column)) for column in zip(*lines, strict=True))]
        for kind, lines in found.items()
    ]
    return Table("AUROC of each view alone", header, body)


def best_score(kind: str, lines: list[Json]) -> str:
    """DUE's OOD score; of others the score with the highest mean AUROC on this pair."""
    known = [name for name in lines[0]["auroc"]["foreign"] if name not in NOT_OWN]
    if kind == "due":
        return OURS if OURS in known else "distance"
    return max(known, key=lambda name: sum(of(lines, name)))


def of(lines: list[Json], score: str, foreign: str = "foreign") -> list[float]:
    """AUROCs of a score, one per seed."""
    return [line["auroc"][foreign][score] for line in lines]


def _runtime(kind: str, models: Mapping[str, list[Json]], lines: list[Json]) -> str:
    if kind == ENSEMBLE:
        return f"{lines[0]['members']}x"
    if "softmax" not in models:
        return "–"
    seconds = [
        sorted(line["seconds_per_epoch"] for line in found)[len(found) // 2]
        for found in (lines, models["softmax"])
    ]
    return f"{seconds[0] / seconds[1]:.2f}x"


ARTEFACT = ImageTable(CATALOGUE["table2"].title, KINDS, tables, NOTES)

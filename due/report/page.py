"""One HTML page about a model, complete in itself: it asks the network for nothing."""

import base64
import hashlib
from importlib.resources import files
from typing import Any

from due.report import measure, sections
from due.report.answers import ClassRows, EffectRows, ValueRows
from due.report.blocks import Fact, Grid, Section, count, number, percent
from due.report.evidence import About, Evidence
from due.report.sections.effects import LOW, Z

TASKS = {
    "classification": "classification",
    "regression": "regression",
    "effect": "effect of a treatment",
}
KEPT = "once the least certain {} of the rows are left out"
MEANING = {
    "accuracy": ("accuracy", "share of rows whose predicted class is the true one"),
    "nll": ("NLL", "mean of −log p(truth), in nats; lower is better"),
    "brier": ("Brier score", "squared error of the probabilities, summed over classes, 0 to 2"),
    "ece": ("ECE", "mean distance of confidence and accuracy, over 15 bins"),
    "rmse": ("RMSE", "root of the mean squared error, in units of the target"),
    "r2": ("R²", "share of the target's variance that is explained"),
    "crps": ("CRPS", "distance of the predicted distribution from the truth, in its units"),
    "coverage_90": ("coverage, 90 %", "share of true values in the 90 % interval"),
    "interval_score_90": ("interval score, 90 %", "width of the interval plus a fine for misses"),
    "outcome_rmse": ("RMSE of outcomes", "of the outcome that was seen; effects have no truth"),
    "risk_10%": ("risk, 10 % left out", "error " + KEPT.format("10 %")),
    "risk_20%": ("risk, 20 % left out", "error " + KEPT.format("20 %")),
    "risk_50%": ("risk, 50 % left out", "error " + KEPT.format("50 %")),
    "aurc": ("AURC", "mean risk (of squares for values) over all shares left out"),
}
WARNING = (
    "If it is too small where the model errs, decisions are made "
    "automatically that should have been deferred to an expert. Measure on rows from where the "
    "model will be used, and again when these change."
)


def render(about: About, evidence: Evidence) -> str:
    """The page as text; every text in it is escaped."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("due.report", "template"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    style, script = _asset("page.css"), _asset("page.js")
    page = environment.get_template("page.html").render(
        about=about,
        task=TASKS[about.task],
        where=evidence.where,
        facts=facts(evidence),
        figures=all_figures(evidence),
        sections=parts(about, evidence),
        style=style,
        script=script,
        policy=_policy(style, script),
    )
    return page.encode("utf-8", "replace").decode()  # a lone surrogate has no place in a file


def parts(about: About, evidence: Evidence) -> list[Section]:
    """All parts of the page that there is evidence for."""
    rows = evidence.rows
    found: list[Section | None] = []
    if isinstance(rows, EffectRows):
        found += [sections.effects(rows), sections.overlap(rows)]
    found += [sections.calibration(evidence), sections.deferral(evidence)]
    found += [sections.foreign(evidence), sections.rows(evidence), sections.columns(evidence)]
    found += [sections.training(about), sections.settings(about), limits(about, evidence)]
    return [section for section in found if section is not None]


def facts(evidence: Evidence) -> list[Fact]:
    """The numbers to see first."""
    rows, found = evidence.rows, measure.scores(evidence.rows, evidence.widths)
    if isinstance(rows, ClassRows) and found:
        return [
            Fact("right", percent(found["accuracy"]), f"of {count(len(rows))}"),
            *(
                [
                    Fact("calibration error", percent(found["ece"]), "ECE, 15 bins"),
                    Fact("NLL", number(found["nll"]), "nats per row"),
                ]
                if "ece" in found
                else []
            ),
            Fact(
                "wrong, 20 % left out",
                percent(found["risk_20%"]),
                f"{percent(1 - found['accuracy'])} on all rows",
            ),
        ]
    if isinstance(rows, ValueRows) and found:
        return [
            Fact("RMSE", number(found["rmse"]), f"R² {number(found['r2'])}"),
            Fact("inside 90 %", percent(found["coverage_90"]), f"of {count(len(rows))}"),
            Fact("CRPS", number(found["crps"]), f"NLL {number(found['nll'])}"),
            Fact(
                "RMSE, 20 % left out", number(found["risk_20%"]), f"{number(found['rmse'])} on all"
            ),
        ]
    if isinstance(rows, EffectRows):
        return _effect_facts(rows, found)
    return [Fact("rows", f"{len(rows):,}", "no true values known")]


def all_figures(evidence: Evidence) -> Grid | None:
    """Every metric of the rows, with how to read it."""
    found = measure.scores(evidence.rows, evidence.widths)
    rows = [[MEANING[name][0], number(value), MEANING[name][1]] for name, value in found.items()]
    return Grid("All figures", ["figure", "value", "what it is"], rows, (0, 2)) if rows else None


def _effect_facts(rows: EffectRows, found: dict[str, float]) -> list[Fact]:
    low, high = rows.effect - Z * rows.std, rows.effect + Z * rows.std
    shown = [
        Fact("mean effect", number(float(rows.effect.mean())), f"over {count(len(rows))}"),
        Fact("told from zero", percent(float(((low > 0) | (high < 0)).mean()), 0), "of the rows"),
    ]
    if rows.overlap is not None:
        alone = float((rows.overlap.min(1) < LOW).mean())
        shown.append(Fact("too little overlap", percent(alone, 0), "of the rows"))
    if found:
        shown.append(Fact("RMSE of outcomes", number(found["outcome_rmse"]), "of the arm seen"))
    return shown


def limits(about: About, evidence: Evidence) -> Section:
    """What the numbers do not say."""
    points = [
        f"Everything was measured on {evidence.where}. On rows from elsewhere, or of later times, "
        "the figures may be worse.",
        "Calibration is an average over rows: it may be off for a group of them.",
        *about.odd,
    ]
    message = "An uncertainty can be wrong."
    return Section("limits", "Known limits", message, [WARNING], points=points)


def _asset(name: str) -> str:
    return files("due.report").joinpath("template", name).read_text(encoding="utf-8")


def _policy(style: str, script: str) -> str:
    """Content security policy: this style, this script, and nothing else from anywhere."""
    return (
        "default-src 'none'; base-uri 'none'; form-action 'none'; img-src data:; "
        f"style-src {_hash(style)}; script-src {_hash(script)}"
    )


def _hash(text: Any) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

"""Whether probabilities and intervals are what they say."""

import numpy as np

from due.report import measure, plots
from due.report.answers import ClassRows, ValueRows
from due.report.blocks import Figure, Grid, Section, count, histogram_grid, percent
from due.report.evidence import Evidence


def calibration(evidence: Evidence) -> Section | None:
    """Whether probabilities or intervals are what they say."""
    rows = evidence.rows
    if isinstance(rows, ClassRows) and rows.truth is not None:
        return _class_calibration(rows)
    if isinstance(rows, ValueRows) and rows.truth is not None:
        return _value_calibration(rows, evidence.widths)
    return None


def _class_calibration(rows: ClassRows) -> Section:
    bins = measure.reliability(rows)
    gap, error = measure.miscalibration(rows)
    says, right = float(rows.confidence.mean()), float(measure.correct(rows).mean())
    points = percent(abs(gap)).replace("%", "points")
    by_chance = abs(gap) <= 2 * error
    verdict = "" if by_chance else f"It is {'over' if gap > 0 else 'under'}-confident. "
    does = "within what" if by_chance else "more than"
    return Section(
        "calibration",
        "Calibration",
        f"{verdict}On average it says {percent(says)} and is right {percent(right)} of the time.",
        [
            f"The difference of {points} is {does} chance does to {count(len(rows))}.",
            "Each dot is a tenth of the rows, or several tenths where confidences hardly differ. "
            "On the dashed line a confidence of 80 % means right in 80 % of the rows; below it "
            "the model promises too much. The bars are 95 % ranges: a bar that meets the line is "
            "no sign against the model.",
        ],
        [
            Figure(
                plots.reliability(bins, "How often the model is right against its confidence."),
                "How often it is right, by confidence.",
                Grid(
                    "Calibration: groups of rows by confidence",
                    ["confidence", "right", "95 % range", "rows"],
                    [
                        [
                            percent(b.confidence),
                            percent(b.accuracy),
                            f"{percent(b.low)} – {percent(b.high)}",
                            f"{b.rows:,}",
                        ]
                        for b in bins
                    ],
                    (),
                ),
            )
        ],
    )


def _value_calibration(rows: ValueRows, widths: list[float]) -> Section:
    levels = measure.coverage(rows, widths)
    ninety = measure.at_90(levels)
    shares, edges = np.histogram(measure.pit(rows), np.linspace(0, 1, 11))
    pit = measure.Histogram(edges, {"rows": shares / len(rows)})
    by_chance = ninety.low <= ninety.observed <= ninety.high
    word = "narrow" if ninety.observed < ninety.nominal else "wide"
    verdict = "" if by_chance else f"Intervals are too {word}. "
    does = "within what" if by_chance else "farther off than"
    return Section(
        "calibration",
        "Calibration",
        f"{verdict}The 90\u00a0% intervals contain {percent(ninety.observed)} of the true values.",
        [
            f"That is {does} chance does to {count(len(rows))}.",
            "The first plot has, per level, the share of rows whose true value lies in the central "
            "interval of that level. On the dashed line intervals are what they say; the grey band "
            "is what chance does. The other plot shows where in its predicted distribution each "
            "true value fell: flat is right, a hill means intervals are too wide, a valley too "
            "narrow, a slope that predictions are too low or too high."
            " It takes mean and standard deviation as a normal distribution"
            + (
                "; the intervals themselves were widened or narrowed by rows kept for calibration."
                if widths
                else "."
            ),
        ],
        [
            Figure(
                plots.coverage(levels, "Share of true values inside, against the level."),
                "How many true values lie in intervals of each level.",
                Grid(
                    "Coverage of central intervals",
                    ["level", "inside", "range by chance"],
                    [
                        [
                            percent(v.nominal, 0),
                            percent(v.observed),
                            f"{percent(v.low)} – {percent(v.high)}",
                        ]
                        for v in levels
                    ],
                    (),
                ),
            ),
            Figure(
                plots.histogram(
                    pit, "predicted probability of a smaller value", "Histogram of the PIT.", True
                ),
                "Where true values fell in their predicted distribution.",
                histogram_grid("Probability integral transform", pit, True),
            ),
        ],
    )

"""The parts of a page about treatment effects: how large, for whom, resting on what data."""

import numpy as np
from scipy.stats import norm

from due.report import measure, plots
from due.report.answers import EffectRows, Floats
from due.report.blocks import Figure, Grid, Section, count, number, percent

Z = float(norm.ppf(0.975))
DRAWN = 80  # intervals
LOW = 0.5  # overlap below which an arm says less than half of what the prior left open


def effects(rows: EffectRows) -> Section:
    """How large effects are, and how many are told from zero."""
    low, high = rows.effect - Z * rows.std, rows.effect + Z * rows.std
    above, below = float((low > 0).mean()), float((high < 0).mean())
    found = measure.histogram({"rows": rows.effect})
    shown = _spread(rows.effect)
    labels = [
        f"row {rows.row[i]}: {rows.effect[i]:.3g}, from {low[i]:.3g} to {high[i]:.3g}"
        for i in shown
    ]
    return Section(
        "effects",
        "Effects",
        f"The effect is {number(float(rows.effect.mean()))} on average; it is surely positive for "
        f"{percent(above, 0)} of the rows, surely negative for {percent(below, 0)}.",
        [
            "“Surely” means that the 95 % credible interval of a row lies on one side of zero: "
            f"for the other {percent(1 - above - below, 0)} the data do not tell. The intervals "
            "are the model's own. Nobody observes the effect on one row, so nothing here could be "
            "checked against true effects.",
            "Effects are causal only if everything that led to the treatment and bears on the "
            "outcome is among the columns.",
        ],
        [
            Figure(
                plots.intervals(
                    low[shown],
                    rows.effect[shown],
                    high[shown],
                    "effect",
                    "Effects with 95 % intervals, in rising order.",
                    labels,
                ),
                f"Effects with 95 % intervals, {_of(len(shown), len(rows))}, in rising order.",
                Grid(
                    "Effects in rising order",
                    ["row", "effect", "from", "to"],
                    [
                        [f"{rows.row[i]}", *(number(float(v[i])) for v in (rows.effect, low, high))]
                        for i in shown
                    ],
                    (),
                ),
                ["interval contains zero", "interval does not"],
                solid=True,
            ),
            Figure(
                plots.histogram(found, "effect", "Histogram of the effects."),
                "How effects are distributed over rows.",
                Grid(
                    "Effects: share of rows per bin",
                    ["from", "to", "rows"],
                    [
                        [number(float(a)), number(float(b)), percent(float(s))]
                        for a, b, s in zip(
                            found.edges[:-1], found.edges[1:], found.shares["rows"], strict=True
                        )
                    ],
                    (),
                ),
            ),
        ],
    )


def overlap(rows: EffectRows) -> Section | None:
    """Whether both arms have data near each row."""
    if rows.overlap is None:
        return None
    arms = {"untreated": rows.overlap[:, 0], "treated": rows.overlap[:, 1]}
    alone = float((rows.overlap.min(1) < LOW).mean())
    found = measure.histogram(arms, limits=(0.0, 1.0))
    return Section(
        "overlap",
        "Overlap of the arms",
        f"For {percent(alone)} of the rows one arm has too little data nearby."
        if alone
        else "Both arms have data near every row.",
        [
            "An effect compares two outcomes of which one never happened, so both arms must have "
            "rows like this one. The overlap is the share of the prior variance that the data of "
            f"an arm remove: near 1 among its rows, 0 far from all of them. Below {LOW:g} in "
            "either arm, the effect rests on the model's assumptions more than on data.",
        ],
        [
            Figure(
                plots.histogram(found, "overlap", "Histogram of the overlap with each arm."),
                "How well each arm's data inform the rows.",
                Grid(
                    "Overlap: share of rows per bin",
                    ["from", "to", *arms],
                    [
                        [
                            number(float(a)),
                            number(float(b)),
                            *(percent(float(s[k])) for s in found.shares.values()),
                        ]
                        for k, (a, b) in enumerate(
                            zip(found.edges[:-1], found.edges[1:], strict=True)
                        )
                    ],
                    (),
                ),
                list(arms),
            )
        ],
    )


def _spread(effect: Floats) -> Floats:
    """Places of at most `DRAWN` rows, evenly over the effects in rising order."""
    ranks = np.argsort(effect, kind="stable")
    return ranks[np.unique(np.linspace(0, len(ranks) - 1, min(DRAWN, len(ranks))).astype(int))]


def _of(n: int, total: int) -> str:
    return f"all {count(n)}" if n == total else f"{n} of {count(total)}"

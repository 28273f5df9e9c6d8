"""Plots as Vega-Lite specifications, drawn to SVG when the page is written: no script, no network.

Colours are CSS variables of the page, so one drawing serves light, dark and print. A mark with a
`label` shows it on hover and by the arrow keys; other marks are decoration.
"""

import re
from collections.abc import Sequence
from typing import Any
from xml.etree import ElementTree

import numpy as np

from due.report.answers import Floats
from due.report.measure import Bin, Curve, Histogram, Level

WIDTH, HEIGHT = 300, 200  # of the inside; the page scales the whole
INK, QUIET, LINE = "var(--ink)", "var(--quiet)", "var(--line)"
FIRST, SECOND, THIRD = "var(--first)", "var(--second)", "var(--third)"
COLOURS = (FIRST, SECOND, THIRD, QUIET)
DASHES = ([1, 0], [6, 3], [2, 2], [1, 0])
SVG = "http://www.w3.org/2000/svg"
PERCENT = ".1~%"  # 2.5%, 10%
NO_TEXT = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
CONFIG: dict[str, Any] = {
    "background": None,
    "padding": 4,
    "font": "sans-serif",
    "view": {"stroke": None},
    "axis": {
        "aria": False,
        "domainColor": QUIET,
        "tickColor": QUIET,
        "gridColor": LINE,
        "labelColor": INK,
        "titleColor": INK,
        "labelFontSize": 12,
        "titleFontSize": 13,
        "titleFontWeight": "normal",
        "titlePadding": 8,
        "tickCount": 5,
        "labelFlush": False,  # at the end of an axis too, a label is below its tick
    },
}
Values = list[dict[str, Any]]


def draw(layers: Sequence[dict[str, Any]], alt: str, height: int = HEIGHT) -> str:
    """The layers over one another as an SVG element, with `alt` as its text alternative."""
    import vl_convert

    spec = {"width": WIDTH, "height": height, "config": CONFIG, "layer": list(layers)}
    drawn = vl_convert.vegalite_to_svg(spec, allowed_base_urls=[], show_warnings=False)
    return _for_the_page(drawn, alt)


def _for_the_page(drawn: str, alt: str) -> str:
    """One image with a name, as wide as its place; labels of marks become titles."""
    ElementTree.register_namespace("", SVG)
    root = ElementTree.fromstring(drawn)
    for name in ("width", "height", "class", "version"):
        root.attrib.pop(name, None)
    root.attrib |= {"role": "img", "aria-label": alt, "tabindex": "0", "focusable": "true"}
    for element in root.iter():
        label = element.attrib.pop("aria-label", None) if element is not root else None
        for name in ("role", "aria-roledescription", "aria-hidden") if element is not root else ():
            element.attrib.pop(name, None)
        if label is not None:
            element.attrib["class"] = "value"
            ElementTree.SubElement(element, f"{{{SVG}}}title").text = label
    return ElementTree.tostring(root, encoding="unicode")


def reliability(bins: Sequence[Bin], alt: str) -> str:
    """Accuracy against confidence, each with its range, beside the diagonal."""
    least = min(0.5, *(min(b.confidence, b.low) for b in bins))
    scale = {"domain": [np.floor(least * 10) / 10, 1]}
    values = [
        {**b._asdict(), "label": f"says {b.confidence:.1%}, right {b.accuracy:.1%}; {b.rows} rows"}
        for b in bins
    ]
    x, y = _axis("confidence", "confidence", scale), _axis("accuracy", "right", scale)
    span = {"x": x, "y": _axis("low", "right", scale), "y2": {"field": "high"}}
    return draw(
        [
            _diagonal(*scale["domain"]),
            _layer(values, {"type": "rule", "color": FIRST, "strokeWidth": 2}, span),
            _layer(values, _dots(FIRST), {"x": x, "y": y, **LABEL}),
        ],
        alt,
        height=240,
    )


def coverage(levels: Sequence[Level], alt: str) -> str:
    """Observed against nominal coverage, in the band of what chance does to so many rows."""
    values = [
        {**v._asdict(), "label": f"{v.nominal:.0%} interval: {v.observed:.1%} of rows inside"}
        for v in levels
    ]
    scale = {"domain": [0, 1]}
    x, y = _axis("nominal", "level of the interval", scale), _axis("observed", "inside", scale)
    band = {"x": x, "y": _axis("low", "inside", scale), "y2": {"field": "high"}}
    return draw(
        [
            _layer(values, {"type": "area", "color": QUIET, "opacity": 0.25}, band),
            _diagonal(0, 1),
            _layer(values, _stroke(FIRST), {"x": x, "y": y}),
            _layer(values, _dots(FIRST), {"x": x, "y": y, **LABEL}),
        ],
        alt,
    )


def risk(curves: dict[str, Curve], what: str, percent: bool, alt: str) -> str:
    """Risk of the rows kept against their share; one line per order, named at its left end."""
    share = PERCENT if percent else ".3~g"
    top = max(float(curve.risk.max()) for curve in curves.values()) or 1.0
    scale = {"domain": [0, top * 1.05]}
    layers = []
    for k, (name, curve) in enumerate(curves.items()):
        values = [
            {
                "kept": float(c),
                "risk": float(r),
                "label": f"{name}: {c:.0%} kept, {what} {f'{r:.1%}' if percent else f'{r:.3g}'}",
            }
            for c, r in zip(curve.kept, curve.risk, strict=True)
        ]
        x = _axis("kept", "rows kept", {"domain": [0, 1]})
        y = _axis("risk", what, scale, share)
        layers.append(_layer(values, _stroke(COLOURS[k], DASHES[k]), {"x": x, "y": y}))
        layers.append(_layer(values, _targets(), {"x": x, "y": y, **LABEL}))
    return draw(layers, alt)


def histogram(found: Histogram, title: str, alt: str, percent: bool = False) -> str:
    """Share of rows per bin: the first group filled, others as outlines over it."""
    layers, values = [], _bins(found, percent)
    scale = {"domain": [float(found.edges[0]), float(found.edges[-1])], "nice": False}
    x = _axis("from", title, scale, PERCENT if percent else ".3~g")
    for k in range(len(found.shares)):
        y = _axis(f"share{k}", "rows", {"zero": True}, ".0~%")
        if k == 0:
            filled = {"type": "bar", "color": COLOURS[k], "opacity": 0.55}
            where = {"x": x, "x2": {"field": "to"}, "y": y, "y2": {"datum": 0}}
            layers.append(_layer(values, filled, where))
        else:
            steps = [*values, {**values[-1], "from": values[-1]["to"]}]
            line = {**_stroke(COLOURS[k], DASHES[k]), "interpolate": "step-after"}
            layers.append(_layer(steps, line, {"x": x, "y": y}))
    whole = {"y": {"value": 0}, "y2": {"value": HEIGHT}, "x": x, "x2": {"field": "to"}}
    layers.append(_layer(values, {"type": "rect", "color": "transparent"}, {**whole, **LABEL}))
    return draw(layers, alt)


def _bins(found: Histogram, percent: bool) -> Values:
    """One entry per bin, with the share of each group."""
    bins = []
    for i, (a, b) in enumerate(zip(found.edges[:-1], found.edges[1:], strict=True)):
        parts = [f"{share[i]:.1%} of {name}" for name, share in found.shares.items()]
        label = f"{_short(a, percent)} to {_short(b, percent)}: {', '.join(parts)}"
        shares = {f"share{k}": float(share[i]) for k, share in enumerate(found.shares.values())}
        bins.append({"from": float(a), "to": float(b), "label": label, **shares})
    return bins


def bars(names: Sequence[str], sizes: Sequence[float], title: str, alt: str) -> str:
    """Horizontal bars, each with its name above it, so that long names have room."""
    values = [
        {"at": k, "name": _clipped(name), "size": size, "label": f"{name}: {size:.3g}"}
        for k, (name, size) in enumerate(zip(names, sizes, strict=True))
    ]
    y = {
        "field": "at",
        "type": "ordinal",
        "axis": None,
        "scale": {"paddingInner": 0.68, "paddingOuter": 0.5},
    }
    x = _axis("size", title, {"domainMin": 0}, ".2~g")
    above = {"type": "text", "align": "left", "dx": 2, "dy": -13, "color": INK, "fontSize": 13}
    text = {"y": y, "x": {"value": 0}, "text": {"field": "name"}}
    return draw(
        [
            _layer(
                values,
                {"type": "bar", "color": FIRST},
                {"y": y, "x": x, **LABEL},
            ),
            _layer(values, {**above, "aria": False, "limit": WIDTH}, text),
        ],
        alt,
        height=34 * len(values) + 12,
    )


def training(loss: Floats, validation: Floats, best: int | None, alt: str) -> str:
    """Loss per epoch on training rows and on held-out ones; the epoch that was kept is marked."""
    layers = []
    groups = {"training rows": loss, "held-out rows": validation}
    for k, (name, series) in enumerate(groups.items()):
        epochs = np.flatnonzero(np.isfinite(series))
        values = [
            {
                "epoch": int(e) + 1,
                "loss": float(series[e]),
                "label": f"{name}: epoch {e + 1}, {series[e]:.4g}",
            }
            for e in epochs
        ]
        where = {
            "x": _axis("epoch", "epoch", {"zero": False}, "d"),
            "y": _axis("loss", "loss per row", {"zero": False}, ".3~g"),
        }
        if values:
            layers.append(_layer(values, _stroke(COLOURS[k], DASHES[k]), where))
            layers.append(_layer(_thinned(values), _targets(), {**where, **LABEL}))
    if best is not None:
        at = {"x": {"field": "epoch", "type": "quantitative"}}
        line = {"type": "rule", "color": QUIET, "strokeDash": [4, 3]}
        layers.append(_layer([{"epoch": best + 1}], line, at))
    return draw(layers, alt)


def intervals(
    low: Floats, middle: Floats, high: Floats, title: str, alt: str, labels: Sequence[str]
) -> str:
    """One interval per row, from the lowest to the highest middle, beside zero."""
    values = [
        {
            "at": k,
            "low": float(a),
            "middle": float(b),
            "high": float(c),
            "label": label,
            "sign": "var(--second)" if a > 0 or c < 0 else "var(--first)",
        }
        for k, (a, b, c, label) in enumerate(zip(low, middle, high, labels, strict=True))
    ]
    x = {
        "field": "at",
        "type": "quantitative",
        "axis": None,
        "scale": {"domain": [-1, len(values)], "nice": False},
    }
    y = _axis("low", title, {"zero": True}, ".3~g")
    colour = {"color": {"field": "sign", "type": "nominal", "scale": None}}
    zero = {"type": "rule", "color": INK, "strokeWidth": 1}
    return draw(
        [
            _layer([{"low": 0}], zero, {"y": y}),
            _layer(
                values,
                {"type": "rule", "strokeWidth": 2, "opacity": 0.55},
                {"x": x, "y": y, "y2": {"field": "high"}, **colour, **LABEL},
            ),
            _layer(
                values,
                {"type": "point", "filled": True, "size": 12, "opacity": 1},
                {"x": x, "y": _axis("middle", title, {"zero": True}, ".3~g"), **colour, **LABEL},
            ),
        ],
        alt,
    )


LABEL: dict[str, Any] = {"description": {"field": "label"}}


def _layer(values: Values, mark: dict[str, Any], encoding: dict[str, Any]) -> dict[str, Any]:
    mark = {"clip": False, "aria": "description" in encoding, **mark}
    values = [{name: drawable(value) for name, value in entry.items()} for entry in values]
    return {"data": {"values": values}, "mark": mark, "encoding": encoding}


def drawable(value: Any) -> Any:
    """A text without the characters that no drawing can have, such as controls."""
    return NO_TEXT.sub("\ufffd", value) if isinstance(value, str) else value


def _axis(field: str, title: str, scale: Any = None, shape: str = PERCENT) -> dict[str, Any]:
    given = {"scale": scale} if scale else {}
    return {
        "field": field,
        "type": "quantitative",
        **given,
        "axis": {"title": title, "format": shape},
    }


def _stroke(colour: str, dash: Sequence[int] = (1, 0)) -> dict[str, Any]:
    return {"type": "line", "color": colour, "strokeWidth": 2, "strokeDash": list(dash)}


def _dots(colour: str) -> dict[str, Any]:
    return {"type": "point", "filled": True, "size": 55, "opacity": 1, "color": colour}


def _targets() -> dict[str, Any]:
    """Invisible places to point at, along a line."""
    return {"type": "point", "filled": True, "size": 150, "opacity": 0, "color": INK}


def _diagonal(low: float, high: float) -> dict[str, Any]:
    values = [{"x": low, "y": low}, {"x": high, "y": high}]
    scale = {"domain": [low, high]}
    where = {axis: {"field": axis, "type": "quantitative", "scale": scale} for axis in "xy"}
    return _layer(values, {**_stroke(QUIET, (4, 3)), "strokeWidth": 1.5}, where)


def _thinned(values: Values, limit: int = 60) -> Values:
    return values[:: -(-len(values) // limit)]


def _clipped(name: str, limit: int = 42) -> str:
    return name if len(name) <= limit else name[: limit - 1] + "…"


def _short(value: float, percent: bool) -> str:
    return f"{value:.0%}" if percent else f"{value:.3g}"

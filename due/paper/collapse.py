"""Why deep kernel learning collapses (Section 3.1, Proposition 1), measured along training.

With K = s κ + σ² I, r = y − μ and σ̂² = σ²/s, the log marginal likelihood is

    −½ rᵀ (s κ + σ² I)⁻¹ r − N/2 log s − ½ log|κ + σ̂² I| − N/2 log 2π.

At the best s, s* = rᵀ (κ + σ̂² I)⁻¹ r / N, the first term is −N/2 whatever the features (the
lemma), so only the two logarithms can still grow. In Titsias's bound κ becomes
κ_Q = κ(h, Z) κ(Z, Z)⁻¹ κ(Z, h), and −tr(κ − κ_Q) / 2σ̂², which s does not enter, is added: the
lemma holds there too.

The curves are those of cosines on x and y standardised, trained on all rows at once. Distances are
between features of distinct inputs over the length scale, as in the kernel; their
ratios are to the distance of the inputs. UCI sets under DUE_DATA follow (`far_rows`; skipped
without).
"""

from collections.abc import Sequence
from typing import NamedTuple, cast

import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator
from torch import Tensor, nn

from due.data.toy import random_cosines
from due.experiments.artefact import Artefact, Result
from due.experiments.journal import Json
from due.experiments.layout import Table
from due.gp import Gaussian, InducingGP, Kernel, features, initialise, log_marginal_likelihood
from due.methods import DUE
from due.methods.method import Plain
from due.paper import CATALOGUE, far_rows
from due.paper.deep_kernels import COLOURS, NETWORKS, Settings, at_hand, extractor, recipe, standard
from due.rows.source import Table as Rows
from due.training import fit

GPS = {"exact": "-", "sparse": "--"}
PANELS = {
    "data_fit": "data fit ½ rᵀ(K + σ²I)⁻¹r, over N",
    "log_det_unit": "log|κ + σ̂²I|, over N",
    "noise_std": "noise σ",
    "smallest_ratio": "least ‖h − h′‖ / l‖x − x′‖; thin: median ‖h − h′‖/l",
}
SKIPPED = "UCI sets: skipped, because DUE_DATA names no folder with uci/*.npz."
PRESETS = {
    "default": Settings(),
    "paper": Settings(),  # the paper measures nothing of this
    "smoke": Settings(n=30, J=8, depth=1, M=5, steps=6, every=3, uci=at_hand()[-1:], uci_steps=3),
}


class Terms(NamedTuple):
    """log p(y), or its bound, is −data_fit − complexity − slack − N/2 log 2π."""

    data_fit: Float[Tensor, ""]  # ½ rᵀ (K + σ² I)⁻¹ r
    complexity: Float[Tensor, ""]  # ½ log|K + σ² I|
    log_det_unit: Float[Tensor, ""]  # log|κ + σ̂² I|
    slack: Float[Tensor, ""]  # tr(K − Q) / 2σ², 0 if exact


class ExactDKL(Plain):
    """Deep kernel and exact GP: loss −log p(y)/N."""

    def __init__(self, f: nn.Module, kernel: Kernel, likelihood: Gaussian) -> None:
        super().__init__()
        self.f, self.kernel, self.likelihood = f, kernel, likelihood
        self.mu = nn.Parameter(torch.zeros(1, dtype=torch.float64))

    def forward(self, x: Tensor, y: Tensor, weights: Tensor | None = None) -> Tensor:
        """−log N(y | μ, K + σ² I) / N."""
        sigma2 = self.likelihood.sigma2
        found = log_marginal_likelihood(self.kernel, self.f(x), y, sigma2, self.mu)
        return -found.total.sum() / len(y)

    def losses(self, x: Tensor, y: Tensor) -> Tensor:
        """The same for every row: only their joint density is at hand."""
        return self(x, y).expand(len(y))


@torch.no_grad()
def exact_terms(kernel: Kernel, h: Tensor, y: Tensor, sigma2: Tensor, mu: Tensor) -> Terms:
    """Of log N(y | μ, K + σ² I), one output."""
    found = log_marginal_likelihood(kernel, h, y, sigma2, mu)
    s = kernel.outputscale[0]
    log_det_unit = 2 * found.complexity[0] - len(y) * s.log()
    return Terms(-found.data_fit[0], found.complexity[0], log_det_unit, torch.zeros_like(s))


@torch.no_grad()
def sparse_terms(gp: InducingGP, h: Tensor, y: Tensor, sigma2: Tensor) -> Terms:
    """Of log N(y | μ, Q + σ² I) − tr(K − Q) / 2σ², Q = s AᵀA, one output, by dense algebra."""
    s, A = gp.kernel.outputscale[0], gp.project(h)[0]  # (M, N)
    eye = torch.eye(len(y), dtype=A.dtype)
    L = torch.linalg.cholesky(s * A.mT @ A + sigma2.double() * eye)
    white = torch.linalg.solve_triangular(L, y.double() - gp.mu.double(), upper=False)
    log_det = 2 * L.diagonal().log().sum()
    slack = s * (len(y) - A.square().sum()) / (2 * sigma2[0])
    return Terms(white.square().sum() / 2, log_det / 2, log_det - len(y) * s.log(), slack)


def run(settings: Settings, seed: int) -> Result:
    """The curves of each network under each GP, then the UCI sets."""
    x, y = cosine_rows(settings, seed)
    curves: Json = {network: {} for network in NETWORKS}
    ends: Json = {network: {} for network in NETWORKS}
    for network in NETWORKS:
        for gp in GPS:
            curve = follow(build(settings, network, gp, x, seed), settings, x, y)
            curves[network][gp] = curve
            ends[network][gp] = {key: curve[key][-1] for key in curve if key != "step"}
    numbers: Json = {"cosines": ends, "uci_sets": len(settings.uci)}
    if settings.uci:
        numbers["uci"] = {name: far_rows.compare(settings, name, seed) for name in settings.uci}
    return Result(numbers, {"curves": curves})


def cosine_rows(settings: Settings, seed: int) -> tuple[Tensor, Tensor]:
    """Rows of the random cosines, standardised."""
    data = random_cosines(settings.n, noise=settings.noise, seed=seed, function_seed=seed)
    return standard(data.X, data.X), standard(data.y[:, None], data.y[:, None])


def build(settings: Settings, network: str, gp: str, x: Tensor, seed: int) -> ExactDKL | DUE:
    """A model at its start: length scale and inducing points as in Algorithm 1."""
    f = extractor(network, x, settings.J, settings.depth, settings.c, seed)
    Z, lengthscale = initialise(features(f, x, 1000, seed)[0], settings.M, seed)
    if gp == "exact":
        return ExactDKL(f, Kernel("rbf", 1, lengthscale), Gaussian())
    return DUE(f, InducingGP(Z, 1, lengthscale), Gaussian(), len(x), bound="collapsed")


def follow(model: ExactDKL | DUE, settings: Settings, x: Tensor, y: Tensor) -> Json:
    """Train on all rows, and note where the terms are every so many steps."""
    curve: dict[str, list[float]] = {}

    def note(step: int) -> None:
        if step % settings.every == 0:
            for key, value in {"step": float(step), **state(model, x, y)}.items():
                curve.setdefault(key, []).append(value)

    note(0)
    how = recipe(settings, settings.steps)
    fit(model, Rows(x, y), how, start=False, progress=False, after_epoch=note)
    return curve


@torch.no_grad()
def state(model: ExactDKL | DUE, x: Tensor, y: Tensor) -> dict[str, float]:
    """Terms over N, scales and distances, as the model stands."""
    model.eval()
    N, h = len(y), model.f(x)
    if isinstance(model, ExactDKL):
        kernel = model.kernel
        terms = exact_terms(kernel, h, y, model.likelihood.sigma2, model.mu)
    else:
        kernel, terms = model.gp.kernel, sparse_terms(model.gp, h, y, model.sigma2)
    apart = torch.pdist(x.double())
    distance = (torch.pdist(h.double()) / kernel.lengthscale)[apart > 0]
    found = {
        **{name: value / N for name, value in terms._asdict().items()},
        "log_likelihood": -model(x, y).double(),
        "outputscale": kernel.outputscale[0],
        "outputscale_over_best": N / (2 * terms.data_fit),
        "lengthscale": kernel.lengthscale[0],
        "noise_std": cast(Gaussian, model.likelihood).sigma2.sqrt()[0],
        "smallest_distance": distance.min(),
        "median_distance": distance.median(),
        "smallest_ratio": (distance / apart[apart > 0]).min(),
    }
    model.train()
    return {name: value.item() for name, value in found.items()}


def text(settings: Settings, mean: Json) -> str:
    """Where training ended, and the UCI sets or why there are none."""
    keys = ["log_likelihood", "data_fit", "complexity", "log_det_unit", "noise_std"]
    keys += ["smallest_distance", "median_distance", "smallest_ratio"]
    header = ["", "log p(y)/N", "data fit/N", "½ log|K + σ²I|/N", "log|κ + σ̂²I|/N", "σ"]
    header += ["min distance/l", "median/l", "min ratio"]
    rows = [
        [f"{NETWORKS[network]}, {gp}", *(f"{found[key]:.4g}" for key in keys)]
        for network, gps in mean["cosines"].items()
        for gp, found in gps.items()
    ]
    title = f"{settings.n} cosines after {settings.steps} steps"
    tables = [Table(title, header, rows).text(), SKIPPED]
    if "uci" in mean:
        tables[1:] = far_rows.tables(settings, mean["uci"])
    return "\n\n".join(tables)


def draw(settings: Settings, results: Sequence[Result]) -> Figure:
    """Four panels of curves of the first seed; below, the means on UCI sets if there are any."""
    has_uci = "uci" in results[0].numbers
    figure = Figure(figsize=(12.5, 6.2 if has_uci else 3.6), layout="constrained")
    axes, *below = figure.subplots(2 if has_uci else 1, 4, squeeze=False)
    for ax, (key, title) in zip(axes, PANELS.items(), strict=True):
        for network, gps in results[0].picture["curves"].items():
            for gp, curve in gps.items():
                style: Json = {"color": COLOURS[network], "ls": GPS[gp]}
                label = f"{NETWORKS[network]}, {gp}"
                ax.plot(curve["step"], curve[key], lw=1.2, label=label, **style)
                if key == "smallest_ratio":  # and the median distance, thinner
                    ax.plot(curve["step"], curve["median_distance"], lw=0.6, **style)
        ax.set(xlabel="step")
        ax.set_title(title, fontsize=7.5)
    axes[0].axhline(0.5, color="0.4", lw=0.8, ls=":")
    beside = axes[0].get_yaxis_transform()  # x of the panel, y of the data
    axes[0].text(0.98, 0.56, "½: the lemma", ha="right", transform=beside, fontsize=8)
    for ax in (axes[0], *axes[2:]):
        ax.set_yscale("log")
        ax.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        ax.yaxis.set_major_formatter("{x:g}")
        ax.yaxis.set_minor_formatter("")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=6, frameon=False, fontsize=8)
    if has_uci:
        far_rows.draw_panels(settings, below[0], results)
    return figure


ARTEFACT = Artefact(CATALOGUE["collapse"].title, PRESETS, run, draw, 3, text)

"""What each trained image model gives: one line of OUT/images.jsonl per model, for all tables.

A model is scored once. Its line holds accuracy, both NLLs, calibration error and an AUROC per
score and foreign set; the tables only read lines, and train what they miss.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from due import metrics
from due.experiments.artefact import Options, Report, heading
from due.experiments.files import make_directory, write_files
from due.experiments.journal import Journal, Json, versions_of
from due.experiments.layout import Table
from due.gp.frozen import Frozen, FrozenClasses
from due.gp.panel import Panel, has_stages, learn_directions, look
from due.lipschitz import batch_norm_constants
from due.methods.answer import entropy
from due.methods.duq import DUQ
from due.methods.method import device_of
from due.methods.sngp import SNGP
from due.methods.softmax import SoftmaxOutput
from due.paper.image_models import KINDS, PAIRS, PRESETS, ImageSettings, Rows, chosen, rows, trained
from due.rows.images import Images

VERSION = 1  # raised where a change of the code changes the numbers
BATCH = 256
ENSEMBLE = "ensemble"
TITLES = {**{name: kind.title for name, kind in KINDS.items()}, ENSEMBLE: "Deep Ensemble"}
RUNS = {"laptop": 3, "paper": 5, "smoke": 1}
VIEWED = 10_000  # training images from which directions are learned
Scores = dict[str, NDArray[np.float64]]  # of a set of images, by name; higher is more foreign


class Seen(NamedTuple):
    """Of a set of images: class probabilities, scores, and the views of a panel."""

    probabilities: NDArray[np.float64]
    scores: Scores
    views: Tensor | None


@torch.no_grad()
def see(model: Any, images: Images, panel: Panel | None) -> Seen:
    """Ask a predictor about all images, network in float32 and what stands on it in float64."""
    probs: list[Tensor] = []
    scores: list[dict[str, Tensor]] = []
    views: list[Tensor] = []
    for x, *_ in images.chunks(BATCH):
        h, stages = _look(model.f, x.to(device_of(model)))
        p = model.probabilities(h)
        probs.append(p / p.sum(1, keepdim=True))
        found, energy = _scores(model, h), _energy(model, h)
        if energy is not None:
            found["energy"] = energy
        if isinstance(model, Frozen) and model.panel is not None and stages is not None:
            found["ood_score"] = model.foreign(h, stages)
        scores.append(found)
        if panel is not None and stages is not None:
            views.append(panel.views(energy, stages))
    joined = {name: torch.cat([part[name] for part in scores]).cpu().numpy() for name in scores[0]}
    whole = torch.cat(probs).double().cpu().numpy()
    joined["entropy"] = metrics.entropy(whole)
    return Seen(whole, joined, torch.cat(views) if views else None)


@torch.no_grad()
def measure(kind: str, settings: ImageSettings, seed: int, out: Path) -> Json:
    """Train one model unless its file is there, and all numbers about it."""
    with torch.enable_grad():
        method, history = trained(kind, settings, seed, out)
    data, model = rows(settings), method.predictor()
    model.f.float()
    panel = learn_panel(model, data)
    test = see(model, data.test, panel)
    foreign = {name: see(model, getattr(data, name), panel) for name in ("foreign", "third")}
    numbers = _quality(test.probabilities, data.test)
    if isinstance(model, FrozenClasses):
        device = device_of(method)
        chunks = (tuple(part.to(device) for part in p) for p in data.test.chunks(BATCH))
        losses = [method.losses(x, y) for x, y, *_ in chunks]
        numbers["expected_nll"] = float(torch.cat(losses).mean())
        numbers["flagged"] = _flagged(model, test.scores)
    constants = torch.cat(list(batch_norm_constants(method.f).values()))  # type: ignore[arg-type]
    return {
        **numbers,
        "auroc": {name: _aurocs(test, seen, panel) for name, seen in foreign.items()},
        "mistakes": _mistakes(test, data.test),
        "foreign_images": {name: len(getattr(data, name)) for name in foreign},
        "seconds_per_epoch": float(np.median(history.seconds)),
        "batch_norm": [round(value, 4) for value in constants.tolist()],
    }


def ensemble(settings: ImageSettings, seeds: Sequence[int], out: Path) -> Json:
    """The average of softmax networks, by its entropy."""
    models = [trained("softmax", settings, seed, out).method.predictor() for seed in seeds]
    data = rows(settings)
    average: Scores = {}
    for name in ("test", "foreign", "third"):
        parts = [see(model, getattr(data, name), None) for model in _in_float32(models)]
        average[name] = np.mean([part.probabilities for part in parts], 0)
    entropies = {name: metrics.entropy(probs) for name, probs in average.items()}
    wrong = average["test"].argmax(1) != data.test.table.data[1].numpy()
    aurocs = {
        name: {"entropy": metrics.auroc(entropies["test"], entropies[name])}
        for name in ("foreign", "third")
    }
    mistakes = metrics.auroc(entropies["test"][~wrong], entropies["test"][wrong])
    return {
        **_quality(average["test"], data.test),
        "auroc": aurocs,
        "mistakes": {"entropy": mistakes},
        "foreign_images": {name: len(getattr(data, name)) for name in aurocs},
        "members": len(models),
    }


@torch.no_grad()
def learn_panel(model: Any, data: Rows) -> Panel | None:
    """DUE's views on any method's network, ranked among one half of the held-out images."""
    if not len(data.held) or not has_stages(model.f):
        return None
    numbers = data.train.sample(VIEWED, 0).split(BATCH)
    device = device_of(model)
    parts = [look(model.f, data.train.take(part)[0].to(device))[1] for part in numbers]
    stages = [torch.cat(part) for part in zip(*parts, strict=True)]
    mean, root = learn_directions(stages)
    panel = Panel(mean, root, [u.shape[1] for u in stages], mean.new_empty(0))
    views = see(model, data.held, panel).views
    assert views is not None
    known = views[: len(views) // 2].sort(0).values
    return Panel(mean, root, panel.sizes, known)


@dataclass(frozen=True)
class ImageTable:
    """Lines of the journal for some kinds of models, then a table of them.

    `kinds` are trained unless there; `tables` makes them of {kind: lines} and the settings.
    """

    title: str
    kinds: tuple[str, ...]
    tables: Callable[[Mapping[str, list[Json]], ImageSettings], list[Table]]
    notes: tuple[str, ...] = ()
    presets: ClassVar = PRESETS

    def reproduce(self, name: str, options: Options) -> Report:
        """Train and score what is missing; write and print the tables."""
        torch.set_num_threads(options.threads or 1)
        settings = chosen(options.preset, options.data)
        wanted = _wanted(options.methods, self.kinds)
        runs = options.seeds or RUNS[options.preset]
        journal = complete(name, options, settings, wanted, range(runs))
        lines = {kind: found_lines(journal, settings, kind) for kind in self.kinds}
        lines = {kind: found for kind, found in lines.items() if found}
        numbers = {kind: [line["numbers"] for line in found] for kind, found in lines.items()}
        tables = self.tables(numbers, settings)
        words = [*self.notes, describe(settings)]
        text = "\n\n".join([*(table.text() for table in tables), *words])
        marked = [f"# {self.title}", *(table.markdown() for table in tables), *words]
        marked += [f"Made by `{options.command}`."] if options.command else []
        report = {
            **heading(name, self.title, options),
            "computed_with": versions_of([line for found in lines.values() for line in found]),
            "settings": plain(settings),
            "models": {
                kind: [{"seed": line["seed"], **_short(line["numbers"])} for line in found]
                for kind, found in lines.items()
            },
        }
        named = f"{name}-{settings.data}"
        files = write_files(options.out, named, json=report, txt=text, md="\n\n".join(marked))
        return Report(text, files)


def complete(
    name: str, options: Options, settings: ImageSettings, kinds: Sequence[str], seeds: range
) -> Journal:
    """The journal with a line for each of these kinds and seeds."""
    make_directory(options.out)
    journal = Journal(options.out / "images.jsonl", ("data", "kind", "seed"), ("numbers",))
    for kind in kinds:
        for seed in seeds if kind != ENSEMBLE else [len(seeds)]:
            line = journal.find(identity(settings), data=settings.data, kind=kind, seed=seed)
            there = "" if line is None else " was already there"
            what = f"of {seed}" if kind == ENSEMBLE else f"seed {seed}"
            options.say(f"{name}: {TITLES[kind]} on {settings.data}, {what}{there}")
            if line is None:
                if kind == ENSEMBLE:
                    numbers = ensemble(settings, range(seed), options.out)
                else:
                    numbers = measure(kind, settings, seed, options.out)
                key = {"data": settings.data, "kind": kind, "seed": seed}
                journal.add(identity(settings), {"numbers": numbers}, **key)
    return Journal(journal.path, ("data", "kind", "seed"), ("numbers",))


def found_lines(journal: Journal, settings: ImageSettings, kind: str) -> list[Json]:
    """The finished lines of this kind with these settings, one per seed; ensembles, the largest."""
    found = {
        line["seed"]: line
        for line in journal.lines
        if "error" not in line
        and (line["data"], line["kind"]) == (settings.data, kind)
        and line["settings"] == identity(settings)
    }
    ordered = [found[seed] for seed in sorted(found)]
    return ordered[-1:] if kind == ENSEMBLE else ordered


def identity(settings: ImageSettings) -> Json:
    """What a line's numbers depend on."""
    return json.loads(json.dumps({"version": VERSION, **plain(settings)}))


def plain(settings: ImageSettings) -> Json:
    """The settings, and of the recipe what is given."""
    return {**asdict(settings), "recipe": settings.recipe.given()}


def describe(settings: ImageSettings) -> str:
    """The preset in words, for every table and picture."""
    recipe, (known, foreign, _) = settings.recipe, PAIRS[settings.data]
    n = len(rows(settings).foreign)
    stride = f", stride {settings.stride} in its first group" if settings.stride > 1 else ""
    return (
        f"Preset {settings.preset}: {known} against {n:,} test images of {foreign}; "
        f"WRN-{settings.depth}-{settings.width}{stride}, c = {settings.c:g}, M = {settings.M}, "
        f"{recipe.epochs} epochs of {recipe.schedule} SGD for every method."
    )


def spread(values: Sequence[float], digits: int = 3, times: float = 1.0) -> str:
    """Mean ± standard error over seeds."""
    scaled = times * np.array(values)
    if len(scaled) < 2:
        return f"{scaled[0]:.{digits}f}"
    return f"{scaled.mean():.{digits}f} ± {scaled.std(ddof=1) / len(scaled) ** 0.5:.{digits}f}"


def _wanted(methods: str | None, kinds: Sequence[str]) -> list[str]:
    asked = list(kinds) if methods is None else [name.strip() for name in methods.split(",")]
    unknown = [name for name in asked if name not in kinds]
    if unknown:
        raise ValueError(f"--methods {', '.join(unknown)} is not known; give {', '.join(kinds)}")
    return asked


def _short(numbers: Json) -> Json:
    return {key: value for key, value in numbers.items() if key != "batch_norm"}


def _in_float32(models: Sequence[Any]) -> Sequence[Any]:
    for model in models:
        model.f.float()
    return models


def _look(f: nn.Module, x: Tensor) -> tuple[Tensor, list[Tensor] | None]:
    if not has_stages(f):
        return f(x).double(), None
    h, stages = look(f, x)
    return h.double(), stages


def _energy(model: Any, h: Tensor) -> Tensor | None:
    """−log Σ_t exp of the logits, for methods that have some."""
    if isinstance(model, FrozenClasses):
        return model.energy(h)
    if isinstance(model, SoftmaxOutput):
        return -torch.logsumexp(model.output(h), 1)
    return -torch.logsumexp(model.gp(h).mean, 1) if isinstance(model, SNGP) else None


def _scores(model: Any, h: Tensor) -> dict[str, Tensor]:
    """A method's own scores beside the entropy."""
    if isinstance(model, FrozenClasses):
        mean, var = model.gp(h)
        plain = entropy(torch.softmax(mean, 1))
        return {"variance": var.mean(1), "plain_entropy": plain, "distance": model.distance(h)}
    if isinstance(model, SNGP):
        return {"variance": model.gp(h).var.mean(1)}
    if isinstance(model, DUQ):
        return {"distance": model.nearest(h)}
    return {"density": model.foreign(h)} if hasattr(model, "foreign") else {}


def _aurocs(test: Seen, foreign: Seen, panel: Panel | None) -> Json:
    found: Json = {
        name: metrics.auroc(inside, foreign.scores[name]) for name, inside in test.scores.items()
    }
    if panel is not None and test.views is not None and foreign.views is not None:
        found["panel"] = metrics.auroc(
            panel(test.views).cpu().numpy(), panel(foreign.views).cpu().numpy()
        )
        columns = (seen.mT.cpu().numpy() for seen in (test.views, foreign.views))
        found["views"] = [metrics.auroc(*pair) for pair in zip(*columns, strict=True)]
    return found


def _mistakes(test: Seen, images: Images) -> Json:
    """AUROC of each score for telling wrong answers from right ones."""
    wrong = test.probabilities.argmax(1) != images.table.data[1].numpy()
    if not 0 < wrong.sum() < len(wrong):
        return {}
    return {name: metrics.auroc(v[~wrong], v[wrong]) for name, v in test.scores.items()}


def _flagged(model: FrozenClasses, scores: Scores) -> Json | None:
    """Share of test images with a p-value of at most 1, 5 and 10 %."""
    if "ood_score" not in scores:
        return None
    p = model.pvalue(torch.from_numpy(scores["ood_score"]).to(model.calibration))
    return {str(alpha): float((p <= alpha).double().mean()) for alpha in (0.01, 0.05, 0.1)}


def _quality(probs: NDArray[np.float64], images: Images) -> Json:
    y = images.table.data[1].numpy()
    return {
        "accuracy": metrics.accuracy(probs, y),
        "nll": metrics.nll(probs, y),
        "ece": metrics.ece(probs, y),
    }

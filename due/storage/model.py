"""A DUE as a directory: what it is made of in `config.json`, what it learned in safetensors."""

from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd

from due.gp import Gaussian, InducingGP, Likelihood, Softmax, StudentT
from due.gp.levels import check_levels
from due.gp.likelihoods import Additive
from due.gp.noise import NoiseShape
from due.lipschitz import Constraint, apply_constraints, constraints
from due.methods.due import DUE, DeepGP
from due.methods.treatment_due import AveragedTreatmentDUE, TreatmentDUE
from due.networks import (
    VGG,
    FCResNet,
    FeedForward,
    ResNet18,
    ReversibleConvNet,
    ReversibleNet,
    WideResNet,
)
from due.storage import files, probe
from due.storage.atomic import StorageError
from due.storage.estimator import part
from due.storage.limits import Limit, check_numbers, rebuilding
from due.storage.schema import MODEL

DROPPED = ("likelihood.epsilon", "likelihood.plain_epsilon")  # points of an earlier integral
SINCE = ("bound", "finish", "inducing", "placement", "refresh", "noise", "kernels")  # version 1
DIMENSIONS = {"reference": 2, "arm0": 2, "arm1": 2, "calibration": 1, "sharpness": 1, "age": 1}
DIMENSIONS |= {
    "level_nominal": 1,
    "level_std": 2,
    "level_z": 3,
    "omega": 2,
    "centres": 2,
    "alpha": 2,
}
DIMENSIONS |= {"view_mean": 1, "view_roots": 1, "view_sizes": 1, "view_known": 2}
SQUARED, SQUARED_ROWS = ("reference", "arm0", "arm1"), 2000  # rows of a matrix with as many columns
Model = TypeVar("Model", bound=nn.Module)
NETWORKS: dict[str, type[nn.Module]] = {
    "FCResNet": FCResNet,
    "FeedForward": FeedForward,
    "ResNet18": ResNet18,
    "ReversibleConvNet": ReversibleConvNet,
    "ReversibleNet": ReversibleNet,
    "VGG": VGG,
    "WideResNet": WideResNet,
}


def save(model: DUE, path: str | Path) -> None:
    """Write the model to the directory `path`, atomically and without pickle."""
    form, answers = _probe(model)
    config = {"model": describe(model), **({"probe": form} if form else {})}
    files.save(path, config, {**model.state_dict(), **answers})


def load(path: str | Path, f: nn.Module | None = None) -> DUE:
    """The model saved at `path`, in eval mode.

    A network of ours is rebuilt from the file. Any other has to be given as `f`, built as it was
    before training and not yet constrained: a file never says what code to run.
    """
    config, tensors = files.load(path)
    if "estimator" in config or "model" not in config:
        raise StorageError(
            f"{path} holds no bare DUE model; an estimator is loaded by its own class, as in "
            "DUEClassifier.load"
        )
    with rebuilding(path):
        check_numbers(tensors)
        own, was = probe.split(tensors)
        MODEL(config["model"], "model")
        with Limit(own):
            model: DUE = rebuild(config["model"], own, f)
        probe.check_form(config.get("probe", {}), was)
        if was:
            rows = was.pop("rows").numpy()
            probe.check_answers(_answers(model, rows), was)
    return model


def _probe(model: DUE) -> probe.Proof:
    """What the model says of made-up rows, if its network tells their shape."""
    known = getattr(model.f, "config", {}) if type(model.f) in NETWORKS.values() else {}
    if not known or model.training:
        return {}, {}
    shape = known["shape"] if "shape" in known else [known["D"]]
    rows = probe.made_up((probe.ROWS, *shape))
    return probe.pack({}, {"rows": rows, **_answers(model, rows)})


@torch.no_grad()
def _answers(model: DUE, rows: Any) -> probe.Arrays:
    answer = model.predict(torch.as_tensor(rows).to(next(model.parameters())))
    parts = answer if isinstance(answer, tuple) else (answer,)
    return {str(i): part.cpu().double().numpy() for i, part in enumerate(parts)}


def describe(model: nn.Module) -> dict[str, Any]:
    """What it takes to build an untrained copy, as JSON; of rivals, their network."""
    if isinstance(model, AveragedTreatmentDUE):
        return {"members": [describe(one) for one in model.members]}
    f = getattr(model, "f", model)
    network = {"network": _describe_network(f), "constraints": constraints(f)}
    if not isinstance(model, DeepGP):
        return network
    return {
        **network,
        "gp": {
            "T": model.gp.T,
            "kernel": model.gp.kernel.kind,
            "shared_kernel": model.gp.shared_kernel,
            "shared_covariance": model.gp.shared_covariance,
            "jitter": model.gp.jitter,
        },
        "likelihood": _describe_likelihood(model.likelihood),
        "n_data": model.n_data,
        "bound": model.bound,
        "finish": model.finishing,
        "inducing": model.inducing,
        "placement": model.placement,
        "refresh": model.refresh,
        "noise": model.noise,
        "kernels": list(model.kernels),
        "treatment": isinstance(model, TreatmentDUE),
    }


def rebuild(config: dict[str, Any], tensors: dict[str, Tensor], f: nn.Module | None = None) -> Any:
    """The deep GP of `describe`, with the given state."""
    f = constrained(_build_network(config["network"]) if f is None else f, config["constraints"])
    if config["gp"].get("shared_covariance") and not config["gp"]["shared_kernel"]:
        raise StorageError("its GP has a shared covariance without a shared kernel")
    gp = InducingGP(torch.zeros_like(tensors["gp.Z"]), **config["gp"])
    likelihood = _build_likelihood(config["likelihood"])
    tensors = {name: tensor for name, tensor in tensors.items() if name not in DROPPED}
    more = {name: config[name] for name in SINCE if name in config}
    kind = TreatmentDUE if config.get("treatment") else DUE
    model = load_state(kind(f, gp, likelihood, config["n_data"], **more), tensors)
    if isinstance(likelihood, StudentT):
        try:
            check_levels(likelihood.levels, gp.T)
        except ValueError as error:
            raise StorageError(f"it is damaged: {error}") from error
    return model


def rebuild_members(
    config: dict[str, Any], tensors: dict[str, Tensor], networks: list[nn.Module]
) -> AveragedTreatmentDUE:
    """The several deep GPs of `describe`, with the given state and networks."""
    each = config["members"]
    weights = tensors.get("weights", torch.empty(0))
    known = {f"members.{i}" for i in range(len(each))}
    strangers = [name for name in tensors if ".".join(name.split(".")[:2]) not in known]
    if not len(each) == len(networks) == len(weights) or strangers != ["weights"]:
        raise StorageError("its members, their networks and their weights do not fit each other")
    if weights.dtype != torch.float64 or weights.ndim != 1 or not _is_share(weights):
        raise StorageError("its tensor weights is not one of shares, whose sum is 1")
    if not all(one.get("treatment") for one in each):
        raise StorageError("its members are not all of effects")
    members = [
        rebuild(one, part(f"members.{i}", tensors), f)
        for i, (one, f) in enumerate(zip(each, networks, strict=True))
    ]
    return AveragedTreatmentDUE(members, weights).eval()


def _is_share(weights: Tensor) -> bool:
    return bool((weights >= 0).all() and (weights.sum() - 1).abs() < 1e-6)


def load_state(model: Model, tensors: dict[str, Tensor]) -> Model:
    """The model with a saved state, in its precision and in eval mode."""
    for name, tensor in chain(model.named_parameters(), model.named_buffers()):
        if name not in tensors:
            continue
        _check_kind(name, tensors[name], tensor)
        if not tensor.numel():  # filled by training, of a size that only the file knows
            tensor.data = torch.empty_like(tensors[name])
        # loading would round float64 weights to the network's float32
        tensor.data = tensor.data.to(tensors[name].dtype)
    unfilled = {name: buffer for name, buffer in model.named_buffers() if not buffer.numel()}
    try:
        model.load_state_dict({**unfilled, **tensors})
    except RuntimeError as error:
        raise _misfit(str(error)) from error
    return model.eval()


def _check_kind(name: str, stored: Tensor, tensor: Tensor) -> None:
    """The stored tensor is of the kind of the one it replaces; floats may have more digits."""
    dims = DIMENSIONS.get(name.split(".")[-1], stored.ndim)
    if name in SQUARED and len(stored) > SQUARED_ROWS:
        raise _misfit(f"{name} has {len(stored)} rows, of which there are {SQUARED_ROWS} at most")
    filled = stored.numel() and not tensor.numel()  # of a size that only the file knows
    if stored.is_floating_point() != tensor.is_floating_point() or (filled and stored.ndim != dims):
        raise _misfit(f"{name} is {stored.dtype} of shape {tuple(stored.shape)}")


def constrained(f: nn.Module, bounds: dict[str, Constraint]) -> nn.Module:
    """A freshly built network with the bounds of the one that was saved."""
    modules = dict(f.named_modules())
    for name in bounds:
        if not isinstance(modules.get(name), nn.Linear | _ConvNd | _BatchNorm):
            raise _misfit(f"it has no layer {name!r} to bound")
    strangers = {bound.get("partner") for bound in bounds.values()} - {None, *bounds}
    if strangers:
        raise _misfit(f"it has no bounded layer {strangers.pop()!r}")
    surplus = constraints(f).keys() - bounds.keys()
    if surplus:
        raise _misfit(f"its layers {sorted(surplus)} are bounded, those that were saved were not")
    return apply_constraints(f, bounds)


def _misfit(reason: str) -> StorageError:
    return StorageError(
        f"the saved weights do not fit the network: {reason}. Give the network that was trained, "
        "as it was before training."
    )


def _describe_network(f: nn.Module) -> dict[str, Any]:
    name = type(f).__name__
    if NETWORKS.get(name) is type(f):
        return {"name": name, "arguments": f.config}
    return {"name": f"{type(f).__module__}.{type(f).__qualname__}"}


def _build_network(config: dict[str, Any]) -> nn.Module:
    if config["name"] not in NETWORKS:
        raise StorageError(
            f"the model's network is {config['name']}, which is not one of ours: build it as it "
            "was before training and pass it to load"
        )
    return NETWORKS[config["name"]](**config["arguments"])


def _describe_likelihood(likelihood: Likelihood) -> dict[str, Any]:
    if isinstance(likelihood, Additive):
        varying, name = likelihood.shape is not None, type(likelihood).__name__
        return {"name": name, "noises": likelihood.noises, "varying": varying}
    arguments = {"T": likelihood.T, "method": likelihood.method, "samples": likelihood.samples}
    return {"name": "Softmax", **arguments}


def _build_likelihood(config: dict[str, Any]) -> Likelihood:
    name, arguments = config["name"], {k: v for k, v in config.items() if k != "name"}
    if arguments.get("method") == "quasi":  # what earlier versions had for "exact"
        arguments["method"] = "exact"
    if arguments.pop("varying", False):
        nothing = torch.empty(0, 0, dtype=torch.float64)
        arguments["shape"] = NoiseShape(nothing, nothing).requires_grad_(False)
    kinds: dict[str, Any] = {"Gaussian": Gaussian, "StudentT": StudentT, "Softmax": Softmax}
    likelihood: Likelihood = kinds[name](**arguments)
    return likelihood

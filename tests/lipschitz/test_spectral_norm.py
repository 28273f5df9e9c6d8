import copy
import io
import pickle
import subprocess
import sys
from typing import Any

import joblib
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lipschitz_oracles import CASES, dense, raw_sigma, sigma, without_bound
from torch import nn
from torch.utils.checkpoint import checkpoint

from due.lipschitz import SpectralNorm, constrain, converge, fold, lipschitz_ratios
from due.lipschitz.operators import adjoint, apply, is_pointwise
from due.lipschitz.spectral_norm import bound_operator
from due.networks import FCResNet

pytestmark = pytest.mark.filterwarnings("ignore:Using padding='same':UserWarning")


@pytest.fixture(params=CASES)
def case(request):
    torch.manual_seed(0)
    layer, in_shape = copy.deepcopy(CASES[request.param])
    layer.reset_parameters()
    return layer, in_shape


def bounded(layer, in_shape, c=0.5):
    return constrain(layer, c, torch.zeros(1, *in_shape))


def small_conv_net():
    """Bounded convolutions for images (3, 8, 8)."""
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Conv2d(3, 6, 3, padding=1), nn.ReLU(), nn.Conv2d(6, 6, 3, 2, padding=1), nn.Flatten()
    )
    return bounded(network, (3, 8, 8))


def unsettled(network):
    """The network with a random unit v in each layer, so that every power iteration shows."""
    for layer in network.modules():
        if isinstance(layer, SpectralNorm):
            v = torch.randn_like(layer.v)
            layer.v.copy_(v / v.norm())
    return network


def test_operator_is_the_layers_own_forward(case):
    layer = bounded(*case).double()
    v = torch.randn(2, *layer.v.shape[1:], dtype=torch.float64)
    got = apply(layer, layer.raw_weight, v)
    if is_pointwise(layer):  # its matrix: the forward at one pixel without stride or padding
        layer.stride, layer.padding, layer.output_padding = (1, 1), (0, 0), (0, 0)
    want = v.flatten(1) @ dense(without_bound(layer), v.shape[1:]).T
    torch.testing.assert_close(got.flatten(1), want)


def test_adjoint_is_exact(case):
    layer, in_shape = case
    W = bounded(layer, in_shape).double().raw_weight
    v = torch.randn(2, *layer.v.shape[1:], dtype=torch.float64)
    Av = apply(layer, W, v)
    u = torch.randn_like(Av)
    Atu = adjoint(layer, W, u, v.shape[2:])
    assert Atu.shape == v.shape
    torch.testing.assert_close((Av * u).sum(), (v * Atu).sum())


def test_sigma_is_that_of_the_dense_matrix_at_construction(case):
    layer, in_shape = case
    want = sigma(layer, in_shape)
    assert bounded(layer, in_shape).sigma().item() == pytest.approx(want, rel=5e-3)


def test_sigma_follows_weights_that_move(case):
    layer, in_shape = case
    bounded(layer, in_shape).train()
    scale = 0.005 * layer.raw_weight.square().mean().sqrt().detach()
    x = torch.zeros(1, *in_shape)
    for _ in range(100):
        with torch.no_grad():
            layer.raw_weight.add_(scale * torch.randn_like(layer.raw_weight))
        layer(x)
    assert layer.sigma().item() == pytest.approx(raw_sigma(layer, in_shape), rel=1e-2)


def test_bounded_layer_has_sigma_c(case):
    layer, in_shape = case
    c = 0.3 * sigma(layer, in_shape)
    assert sigma(bounded(layer, in_shape, c), in_shape) == pytest.approx(c, rel=5e-3)


@pytest.mark.parametrize("c", [1e6, float("inf")])
def test_huge_c_changes_no_bit(case, c):
    layer, in_shape = case
    plain = copy.deepcopy(layer)
    x = torch.randn(2, *in_shape)
    assert torch.equal(bounded(layer, in_shape, c)(x), plain(x))


@pytest.mark.parametrize(
    "name", ["linear-square", "conv2d-stride2-odd", "conv2d-depthwise", "transpose2d"]
)
def test_gradient_through_sigma(name):
    layer, in_shape = copy.deepcopy(CASES[name])
    bounded(layer, in_shape, c=0.1).double().eval()
    weight = layer.raw_weight.detach()[:6].clone().requires_grad_()

    def scaled(W):
        full = torch.cat([W, layer.raw_weight.detach()[6:]])
        return torch.func.functional_call(
            layer, {"weight": full}, torch.ones(1, *in_shape).double()
        )

    assert torch.autograd.gradcheck(scaled, weight, fast_mode=True)


def test_groups_do_not_starve_one_another():
    layer: Any = nn.Conv2d(4, 4, 3, padding=1, groups=4)
    bounded(layer, (4, 6, 6)).train()
    for _ in range(200):
        layer(torch.zeros(1, 4, 6, 6))
    with torch.no_grad():
        layer.raw_weight[3] *= 100
    layer(torch.zeros(1, 4, 6, 6))
    assert layer.sigma().item() == pytest.approx(raw_sigma(layer, (4, 6, 6)), rel=1e-2)


@settings(max_examples=20, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    D=st.integers(1, 8),
    depth=st.integers(0, 4),
    c=st.floats(0.05, 0.95),
    scale=st.floats(0.1, 10),
    activation=st.sampled_from(["relu", "elu"]),
)
def test_constrained_fc_resnet_is_bi_lipschitz(seed, D, depth, c, scale, activation):
    torch.manual_seed(seed)
    network = FCResNet(D, J=16, depth=depth, activation=activation).double()
    with torch.no_grad():
        for p in network.parameters():
            p.mul_(scale)
    constrain(network, c, torch.zeros(2, D).double()).eval()
    a, b = torch.randn(2, 50, D, dtype=torch.float64) * 10
    first = torch.linalg.svdvals(network.first.weight.detach())

    ratios = lipschitz_ratios(network, a, b)

    slack = 1e-2 * c  # σ is found to within 0.5 %
    assert ratios.upper <= first[0] * (1 + c + slack) ** depth * (1 + 1e-9)
    assert ratios.lower >= first[-1] * (1 - c - slack) ** depth * (1 - 1e-9)


def test_training_forward_is_one_power_iteration_and_eval_is_none():
    layer = unsettled(bounded(nn.Linear(20, 20), (20,)))
    before, W = layer.v.clone(), layer.raw_weight.detach()
    layer.eval()(torch.zeros(1, 20))
    assert torch.equal(layer.v, before)
    layer.train()(torch.zeros(1, 20))
    want = before @ W.T @ W
    torch.testing.assert_close(layer.v, want / want.norm())


def test_global_generator_is_left_alone():
    layer = nn.Conv2d(3, 6, 3, padding=1)
    state = torch.get_rng_state()
    converge(bounded(layer, (3, 8, 8)))
    assert torch.equal(torch.get_rng_state(), state)


@pytest.mark.parametrize("reentrant", [True, False])
def test_gradients_are_the_same_under_checkpointing(reentrant):
    plain = unsettled(small_conv_net()).train()
    saved = copy.deepcopy(plain)
    x = torch.randn(2, 3, 8, 8, requires_grad=True)
    plain(x).square().sum().backward()
    checkpoint(saved, x, use_reentrant=reentrant).square().sum().backward()
    for a, b in zip(plain.parameters(), saved.parameters(), strict=True):
        assert torch.equal(a.grad, b.grad)
    for a, b in zip(plain.buffers(), saved.buffers(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", ["linear-square", "conv2d-stride2-odd", "conv2d-circular"])
def test_gradient_of_several_uses_is_the_sum_of_their_own(name):
    together = unsettled(bounded(*copy.deepcopy(CASES[name]), c=0.1))
    alone = copy.deepcopy(together)
    training = [True, True, False, True]  # each use in training changes v
    uses = [(mode, torch.randn(2, *CASES[name].in_shape)) for mode in training]

    sum(together.train(mode)(x).sum() for mode, x in uses).backward()

    for mode, x in uses:
        alone.train(mode)(x).sum().backward()
    torch.testing.assert_close(together.raw_weight.grad, alone.raw_weight.grad)
    assert torch.equal(together.v, alone.v)


def test_channels_last_computes_the_same():
    network = small_conv_net().train()
    other = copy.deepcopy(network).to(memory_format=torch.channels_last)
    x = torch.randn(2, 3, 8, 8)
    for _ in range(3):
        want = network(x)
        got = other(x.to(memory_format=torch.channels_last))
    torch.testing.assert_close(got, want)


def by_pickle(x):
    return pickle.loads(pickle.dumps(x))


def by_joblib(x):
    file = io.BytesIO()
    joblib.dump(x, file)
    return joblib.load(io.BytesIO(file.getvalue()))


def by_torch(x):
    file = io.BytesIO()
    torch.save(x, file)
    return torch.load(io.BytesIO(file.getvalue()), weights_only=False)


@pytest.mark.parametrize("copied", [copy.deepcopy, copy.copy, by_pickle, by_joblib, by_torch])
def test_copies_are_the_same_network(copied):
    network = nn.Sequential(small_conv_net(), nn.BatchNorm1d(96), nn.Linear(96, 4))
    bounded(network, (3, 8, 8)).eval()
    other = copied(network)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(other(x), network(x))
    assert [type(m) for m in other.modules()] == [type(m) for m in network.modules()]
    assert isinstance(other[2], nn.Linear) and other[2].c == 0.5


def test_pickle_opens_in_a_new_process(tmp_path):
    layer = bounded(nn.Linear(3, 2), (3,))
    (tmp_path / "layer.pkl").write_bytes(pickle.dumps(layer))
    code = "import pickle, sys; print(type(pickle.load(open(sys.argv[1], 'rb'))).__name__)"
    out = subprocess.run(
        [sys.executable, "-c", code, tmp_path / "layer.pkl"], capture_output=True, text=True
    )
    assert out.stdout.strip() == "SpectralLinear", out.stderr


COMPILE = """
import copy, torch
from torch import nn
from due.lipschitz import constrain
from due.networks import FCResNet
torch.set_num_threads(1)
torch.manual_seed(0)
conv = nn.Sequential(
    nn.Conv2d(3, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 4, 3, 2, padding=1)
)
for network, shape in [(FCResNet(3, J=4, depth=1), (4, 3)), (conv, (4, 3, 8, 8))]:
    constrain(network, 0.3, torch.zeros(shape)).train()
    for name, v in network.named_buffers():  # random, so that each power iteration shows
        if name.endswith("v"): v.copy_(torch.randn_like(v))
    eager, x = copy.deepcopy(network), torch.randn(shape)
    compiled = torch.compile(network, fullgraph=True, backend="BACKEND")
    for _ in range(2):
        compiled(x).square().sum().backward()
        eager(x).square().sum().backward()
    for (name, a), b in zip(network.named_parameters(), eager.parameters()):
        torch.testing.assert_close(a.grad, b.grad, atol=1e-5, rtol=1e-4, msg=name)
    for a, b in zip(network.buffers(), eager.buffers()):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
print("same")
"""


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiles_to_one_graph(backend):
    """In a process of its own: the shape-checking hook of the tests would be traced too."""
    code = COMPILE.replace("BACKEND", backend)
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert out.stdout.strip() == "same", out.stderr


def test_exports_in_eval_mode():
    network = small_conv_net().eval()
    x = torch.randn(2, 3, 8, 8)
    exported = torch.export.export(network, (x,)).module()
    torch.testing.assert_close(exported(x), network(x))


def test_sigma_is_not_computed_in_bfloat16_under_autocast():
    layer = bounded(nn.Linear(64, 64), (64,))
    want = layer.sigma()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(layer.sigma(), want)
        layer.train()
        before = layer.v.clone()
        assert layer(torch.randn(2, 64)).dtype == torch.bfloat16
    torch.testing.assert_close(layer.v, before, atol=5e-2, rtol=0)
    assert layer.sigma().item() == pytest.approx(want.item(), rel=1e-3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_parameters_of_other_types(dtype):
    layer: Any = nn.Conv2d(3, 4, 3, padding=1).to(dtype)
    x = torch.randn(1, 3, 8, 8, dtype=dtype)
    constrain(layer, 0.2, x).train()
    assert layer.sigma().dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    for _ in range(5):
        assert layer(x).dtype == dtype
    assert sigma(layer, (3, 8, 8)) == pytest.approx(0.2, rel=1e-2)


@pytest.mark.parametrize("name", ["linear-square", "conv2d", "conv2d-groups", "transpose2d"])
def test_zero_weights_give_no_nan_and_v_wakes_up(name):
    layer, in_shape = copy.deepcopy(CASES[name])
    weight = layer.weight.detach().clone()
    nn.init.zeros_(layer.weight)
    bounded(layer, in_shape).train()
    layer(torch.randn(2, *in_shape)).square().sum().backward()
    assert layer.raw_weight.grad.isfinite().all()
    assert layer.v.isfinite().all() and layer.v.norm() > 0
    with torch.no_grad():
        layer.raw_weight.copy_(weight)
    for _ in range(100):
        layer(torch.zeros(1, *in_shape))
    assert layer.sigma().item() == pytest.approx(raw_sigma(layer, in_shape), rel=2e-2)


def test_groups_of_tiny_weights_give_no_nan():
    """As in pretrained depthwise convolutions, of which some channels have died."""
    torch.manual_seed(0)
    layer: Any = nn.Conv2d(32, 32, 5, groups=32, bias=False)
    with torch.no_grad():
        layer.weight[::2] *= 1e-8 * torch.rand(16, 1, 1, 1)
    constrain(layer, 0.5, torch.zeros(2, 32, 5, 5))
    assert layer.v.isfinite().all()
    assert sigma(layer, (32, 5, 5)) == pytest.approx(0.5, rel=5e-3)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["linear-square", "conv2d"])
def test_one_bad_weight_does_not_poison_v(name, bad):
    layer, in_shape = copy.deepcopy(CASES[name])
    bounded(layer, in_shape).train()
    want, weight = layer.sigma().item(), layer.raw_weight.detach().clone()
    with torch.no_grad():
        layer.raw_weight.flatten()[0] = bad
        layer(torch.zeros(1, *in_shape))
        layer.converge()
        layer.raw_weight.copy_(weight)
    assert layer.sigma().item() == pytest.approx(want)


def test_converge_recovers_from_a_broken_v():
    layer = bounded(nn.Linear(8, 8), (8,))
    want = layer.sigma().item()
    layer.v.fill_(float("nan"))
    layer.converge()
    assert layer.sigma().item() == pytest.approx(want, rel=5e-3)


def test_attention_reads_the_bounded_weight_and_refines_its_v():
    attention: Any = nn.MultiheadAttention(8, 2)
    x = torch.randn(3, 1, 8)
    with pytest.warns(UserWarning, match="in_proj_weight"):
        constrain(attention, 0.1, (x, x, x))
    plain, want = fold(attention), copy.deepcopy(unsettled(attention)).out_proj
    assert sigma(plain.out_proj, (8,)) == pytest.approx(0.1, rel=5e-3)
    want.step()
    attention.train()(x, x, x)
    assert torch.equal(attention.out_proj.v, want.v)
    converge(attention)
    torch.testing.assert_close(attention.eval()(x, x, x), plain(x, x, x))


def test_functional_call_bounds_the_weight_it_is_given():
    layer = bounded(nn.Linear(4, 4), (4,), c=1.0).eval()
    x = torch.randn(2, 4)
    out = torch.func.functional_call(layer, {"weight": 10 * layer.raw_weight.detach()}, (x,))
    weight = 10 * layer.raw_weight / (10 * layer.sigma())
    torch.testing.assert_close(out, nn.functional.linear(x, weight, layer.bias))


def test_moves_to_meta_and_back():
    layer = bounded(nn.Conv2d(3, 4, 3), (3, 8, 8))
    state = copy.deepcopy(layer.state_dict())
    layer.to("meta")
    layer.converge()
    assert layer.v.is_meta and layer(torch.empty(1, 3, 8, 8, device="meta")).is_meta
    layer.to_empty(device="cpu").load_state_dict(state)
    assert torch.equal(layer.v, state["v"])


def test_trains_under_distributed_data_parallel(tmp_path):
    dist = torch.distributed
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/ddp", rank=0, world_size=1)
    try:
        network = small_conv_net().train()
        alone, x = copy.deepcopy(network), torch.randn(2, 3, 8, 8)
        parallel = nn.parallel.DistributedDataParallel(network)
        (parallel(x).square().sum() + parallel(x).square().sum()).backward()
        (alone(x).square().sum() + alone(x).square().sum()).backward()
    finally:
        dist.destroy_process_group()
    for a, b in zip(network.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


def test_assigning_a_parameter_is_assigning_the_raw_weight():
    layer = bounded(nn.Linear(3, 3), (3,))
    layer.weight = nn.Parameter(torch.eye(3))
    assert torch.equal(layer.raw_weight, torch.eye(3))
    layer.converge()
    torch.testing.assert_close(layer.weight, 0.5 * torch.eye(3))


def test_repr_tells_c():
    assert "SpectralLinear(in_features=3, out_features=2, bias=True, c=0.5)" in repr(
        bounded(nn.Linear(3, 2), (3,))
    )


LAYERS = {
    "linear": (lambda: nn.Linear(6, 5), (6,)),
    "convolution": (lambda: nn.Conv2d(3, 4, 3, stride=2, padding=1), (3, 9, 9)),
    "groups": (lambda: nn.Conv2d(4, 6, 3, padding=1, groups=2), (4, 7, 7)),
    "transposed": (lambda: nn.ConvTranspose2d(3, 4, 3, stride=2), (3, 5, 5)),
}


@pytest.mark.parametrize("name", LAYERS)
def test_between_refreshes_sigma_is_linear_in_the_weight(name):
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    plain: Any = make()
    layer = bound_operator(plain.double(), 0.5, shape)
    layer.converge()
    with torch.enable_grad():
        exact = layer.sigma()
        (want,) = torch.autograd.grad(exact, layer.raw_weight)
    layer.refresh()
    (found,) = torch.autograd.grad(layer.sigma(), layer.raw_weight)
    torch.testing.assert_close(layer.sigma(), exact, rtol=1e-4, atol=0)
    torch.testing.assert_close(found, want, rtol=0, atol=1e-2 * float(want.abs().max()))

    v, before, change = layer.v.clone(), layer.sigma(), 0.1 * torch.randn_like(layer.raw_weight)
    with torch.no_grad():
        layer.raw_weight.add_(change)
    layer.train()
    assert layer.weight.shape == change.shape
    assert torch.equal(layer.v, v)  # no power iteration of its own
    assert layer.G is not None
    if name != "groups":  # there the largest group may change
        torch.testing.assert_close(layer.sigma() - before, (layer.G * change).sum())


def test_a_weight_well_below_the_bound_is_left_alone():
    layer = bound_operator(nn.Linear(4, 4), 100.0, (4,))
    layer.refresh()
    assert layer.weight is layer.raw_weight
    assert layer.G is not None and not layer.G.any()
    twin = bound_operator(nn.Linear(4, 4), 100.0, (4,))
    twin.load_state_dict(layer.state_dict())
    assert twin.slack
    layer.release()
    assert "G" not in layer.state_dict() and not layer.slack


def test_between_refreshes_a_weight_is_scaled_once_it_crosses_the_bound():
    torch.manual_seed(0)
    layer = bound_operator(nn.Conv2d(3, 4, 3).double(), 1.0, (3, 9, 9))
    layer.converge()
    with torch.no_grad():
        layer.raw_weight.mul_(0.95 / layer.sigma())
    layer.refresh()
    assert not layer.slack and layer.bounded_weight() is layer.raw_weight
    with torch.no_grad():
        layer.raw_weight.mul_(1.2)
    W, G = layer.raw_weight, layer.G
    assert G is not None
    torch.testing.assert_close((G * layer.bounded_weight()).sum(), torch.ones(()).double())
    want = torch.autograd.grad((W / (G * W).sum()).square().sum(), W)
    found = torch.autograd.grad(layer.bounded_weight().square().sum(), W)
    torch.testing.assert_close(found, want)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [5.0, 0.1, 0.0])
def test_the_short_way_of_a_matrix_is_the_long_way(dtype, size):
    """A step of training in one function: the same weight, v and gradient as step by step."""
    layer: Any = nn.Linear(7, 9).to(dtype)
    with torch.no_grad():
        layer.weight *= size
    constrain(layer, 0.9, torch.zeros(2, 7, dtype=dtype))
    x, y = torch.randn(4, 7, dtype=dtype), torch.randn(4, 9, dtype=dtype)
    start, found = layer.v.clone(), []
    for in_steps in (False, True):
        layer.v.copy_(start)
        if in_steps:
            layer.step()
            W = layer._times_scale(layer.raw_weight)
        else:
            W = layer.weight
        (gradient,) = torch.autograd.grad((x @ W.mT * y).sum(), layer.raw_weight)
        found.append((W.detach(), layer.v.clone(), gradient))
    for short, long in zip(*found, strict=True):
        torch.testing.assert_close(short, long)

"""A gradient may arrive in any layout: every one gives eager's gradients, on every backend."""

import copy

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.backends.toolchain import compiler

#: Rounding of compiled loops, in single precision.
TOLERANCE = 2e-4


def odd_strides(like):
    """A tensor whose dimensions of size one have strides that nothing explains."""
    made = torch.randn(like.shape)
    strides = [99 if n == 1 else stride for n, stride in zip(made.shape, made.stride(), strict=True)]
    return made.as_strided(made.shape, strides)


LAYOUTS = {
    "contiguous": lambda t: torch.randn(t.shape),
    "channels last": lambda t: torch.randn(t.shape).contiguous(memory_format=torch.channels_last),
    "expanded": lambda t: torch.randn(()).expand(t.shape),
    "expanded in part": lambda t: torch.randn(t.shape[1:]).expand(t.shape),
    "transposed": lambda t: torch.randn(t.transpose(1, 3).shape).transpose(1, 3),
    "reversed": lambda t: torch.randn(t.shape[::-1]).permute(3, 2, 1, 0),
    "sliced": lambda t: torch.randn(*t.shape, 2)[..., 1],
    "cropped": lambda t: torch.randn(*t.shape[:2], *(n + 2 for n in t.shape[2:]))[:, :, 1:-1, 1:-1],
    "windows": lambda t: torch.randn(2 * t.numel()).as_strided(t.shape, (7, 5, 3, 1)),
    "negative bit": lambda t: torch._neg_view(torch.randn(t.shape)),
    "zeros without memory": lambda t: torch._efficientzerotensor(t.shape, dtype=t.dtype),
    "odd strides": odd_strides,
}

IMAGES = {
    "convolution": lambda: nn.Conv2d(3, 4, 3),
    "relu": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()),
    "batch norm": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)),
    "two convolutions": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3)),
    "norm and pool": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2)),
    "transposed": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.GELU(), nn.ConvTranspose2d(4, 2, 3)),
    "one channel": lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.Conv2d(4, 1, 1)),
}


def gradients(model, x, tangent):
    x = x.clone().requires_grad_()
    model(x).backward(tangent)
    found = [x.grad, *(p.grad for p in model.parameters())]
    model.zero_grad()
    return found


def assert_every_layout(make, layouts, backend, tolerance):
    torch.manual_seed(0)
    model = make()
    ours = fg.compile(copy.deepcopy(model), backend=backend, cache=False)
    x = torch.randn(2, 3, 9, 9)
    like = copy.deepcopy(model)(x)
    for name in layouts:
        tangent = LAYOUTS[name](like)
        expected, found = gradients(model, x, tangent), gradients(ours, x, tangent)
        for a, b in zip(expected, found, strict=True):
            assert a.shape == b.shape, name
            assert torch.allclose(a, b, tolerance, tolerance), (name, (a - b).abs().max())


@pytest.mark.parametrize("model", IMAGES)
def test_a_network_that_ends_in_an_image(model):
    assert_every_layout(IMAGES[model], LAYOUTS, "eager", 0.0)


@pytest.mark.skipif(compiler() is None, reason="no compiler")
@pytest.mark.parametrize("model", ["relu", "batch norm", "two convolutions"])
def test_a_network_that_ends_in_an_image_compiled(model):
    layouts = ["channels last", "expanded", "cropped", "negative bit", "zeros without memory"]
    assert_every_layout(IMAGES[model], layouts, "inductor", TOLERANCE)


@pytest.mark.skipif(compiler() is None, reason="no compiler")
def test_a_network_that_ends_in_an_image_as_a_library():
    assert_every_layout(IMAGES["relu"], ["channels last", "negative bit"], "aoti", TOLERANCE)


@pytest.mark.skipif(compiler() is None, reason="no compiler")
@pytest.mark.parametrize("backend", ["eager", "inductor"])
def test_saved_values_that_a_hook_gives_back_as_negatives(backend):
    x = torch.randn(3, 4, requires_grad=True)
    function = fg.compile(lambda t: t.sin(), backend=backend, cache=False)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: -t, torch._neg_view):
        out = function(x)
    out.sum().backward()
    assert torch.allclose(x.grad, x.cos())


@pytest.mark.skipif(compiler() is None, reason="no compiler")
def test_tangents_that_only_need_a_copy_compile_nothing():
    def function(t):
        return t.sin()

    ours = fg.compile(function, backend="inductor", cache=False)
    x = torch.randn(2, 1, 3, 3, requires_grad=True)
    for name in ("contiguous", "expanded", "sliced", "cropped", "odd strides", "negative bit"):
        ours(x).backward(LAYOUTS[name](x))
    assert len(ours.captures[0].stage._backwards) == 1

"""Convolutions by our own kernel: as near to the exact values as torch's, wherever they are used."""

import subprocess
import sys
import textwrap

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg
from foregrad.backends import choose
from foregrad.backends.kernels.convolutions import Convolutions, square_size
from foregrad.backends.kernels.winograd import build_convolutions
from foregrad.cache.serialize.cached_calls import FOUND
from foregrad.passes.channels_last import channels_last
from foregrad.passes.convolution_sizes import is_quicker

pytestmark = pytest.mark.skipif(choose.compiler() is None, reason="there is no C++ compiler")

ONCE = [1, 1], [1, 1], [1, 1], False, [0, 0], 1  # stride, padding, dilation, transposed, output_padding, groups
OPTIONS = dict(zip(("stride", "padding", "dilation", "transposed", "output_padding", "groups"), ONCE, strict=True))
TIMES = 4  # as far from the exact values as torch's own kernels, at most

#: Batch, channels in and out, height, width: even and odd, one square or many, of either size, in one block and
#: in several.
SIZES = [
    (2, 32, 64, 7, 9),
    (1, 64, 32, 8, 8),
    (1, 32, 32, 15, 2),
    (5, 96, 32, 5, 8),
    (6, 64, 64, 32, 31),
    (32, 128, 128, 16, 16),
    (8, 512, 512, 4, 4),
    (2, 64, 96, 29, 14),
    (11, 64, 64, 11, 4),
    (32, 320, 64, 4, 4),
]


@pytest.fixture(scope="module")
def convolutions():
    return build_convolutions()()


@pytest.fixture
def runs(monkeypatch):
    """What our kernel is run for."""
    found, run = [], Convolutions._run

    def noted(self, what, *tensors):
        found.append(what)
        run(self, what, *tensors)

    monkeypatch.setattr(Convolutions, "_run", noted)
    return found


def randn(*shape):
    return torch.randn(shape).contiguous(memory_format=torch.channels_last)


def distance(value, exact):
    return ((value.double() - exact).norm() / exact.norm()).item()


def assert_as_near(ours, torchs, exact):
    for our, their, true in zip(ours, torchs, exact, strict=True):
        assert our.stride() == their.stride()
        assert distance(our, true) <= TIMES * distance(their, true) + 1e-7


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_gradients_are_as_near_as_torchs(convolutions, size):
    torch.manual_seed(0)
    count, ins, outs, height, width = size
    image, weight, gradient = (
        randn(count, ins, height, width),
        randn(outs, ins, 3, 3),
        randn(count, outs, height, width),
    )
    bias = torch.randn(outs)
    given = image, weight, bias
    assert_as_near(
        [convolutions.forward(*given, **OPTIONS)],
        [torch.convolution(*given, *ONCE)],
        [torch.convolution(*(one.double() for one in given), *ONCE)],
    )
    backward = torch.ops.aten.convolution_backward.default
    given, rest = (gradient, image, weight), ([outs], *ONCE, [True, True, True])
    exact = backward(*(one.double() for one in given), *rest)
    assert_as_near(convolutions.backward(*given, *rest), backward(*given, *rest), exact)


def test_only_what_is_asked_for_is_computed(convolutions, runs):
    image, weight, gradient = randn(4, 32, 8, 8), randn(64, 32, 3, 3), randn(4, 64, 8, 8)
    for place in range(3):
        mask = [place == one for one in range(3)]
        given = convolutions.backward(gradient, image, weight, [64], *ONCE, mask)
        assert [one is not None for one in given] == mask
    assert runs == [1, 2]


@pytest.mark.parametrize("size", SIZES[3:], ids=str)
def test_any_number_of_threads_gives_the_same_bits(convolutions, size):
    count, ins, outs, height, width = size
    image, weight, gradient = (
        randn(count, ins, height, width),
        randn(outs, ins, 3, 3),
        randn(count, outs, height, width),
    )
    found = []
    try:
        for threads in (1, 2, 5):
            torch.set_num_threads(threads)
            forward = convolutions.forward(image, weight, None, **OPTIONS)
            found.append(
                [forward, *convolutions.backward(gradient, image, weight, [0], *ONCE, [True, True, False])[:2]]
            )
    finally:
        torch.set_num_threads(1)
    assert all(torch.equal(one, other) for others in found[1:] for one, other in zip(found[0], others, strict=True))


def options(**changed):
    return list((OPTIONS | changed).values())


@pytest.mark.parametrize(
    ("image", "weight", "rest"),
    [
        (torch.empty(4, 32, 8, 8), torch.empty(32, 32, 3, 3), options(stride=[2, 2])),
        (torch.empty(4, 32, 8, 8), torch.empty(32, 32, 3, 3), options(padding=[0, 1])),
        (torch.empty(4, 32, 8, 8), torch.empty(32, 32, 3, 3), options(dilation=[1, 2])),
        (torch.empty(4, 32, 8, 8), torch.empty(32, 32, 3, 3), options(transposed=True)),
        (torch.empty(4, 64, 8, 8), torch.empty(64, 32, 3, 3), options(groups=2)),
        (torch.empty(4, 32, 8, 8), torch.empty(32, 32, 1, 1), options()),
        (torch.empty(4, 32, 8), torch.empty(32, 32, 3), options()),
        (torch.empty(4, 3, 8, 8), torch.empty(32, 3, 3, 3), options()),
        (torch.empty(1, 32, 4, 4), torch.empty(32, 32, 3, 3), options()),
        (torch.empty(4, 32, 8, 8).double(), torch.empty(32, 32, 3, 3).double(), options()),
        (torch.empty(4, 32, 8, 8, device="meta"), torch.empty(32, 32, 3, 3, device="meta"), options()),
    ],
)
def test_other_convolutions_are_left_to_torch(image, weight, rest):
    assert not is_quicker(image, weight, *rest)
    assert is_quicker(torch.empty(4, 32, 8, 8), torch.empty(32, 32, 3, 3), *options())


@pytest.mark.parametrize(
    ("size", "sides"),
    [
        ((32, 64, 64, 32, 32), [4, 4, 4]),
        ((32, 512, 512, 4, 4), [4, 4, 4]),
        ((32, 64, 64, 7, 7), [4, 4, 4]),
        ((32, 64, 64, 5, 5), [2, 2, 2]),
        ((32, 64, 64, 6, 6), [2, 2, 2]),
        ((32, 64, 64, 2, 2), [2, 2, 2]),
        ((32, 32, 64, 8, 8), [2, 4, 4]),
        ((32, 64, 32, 8, 8), [4, 2, 4]),
        ((7, 64, 64, 8, 8), [4, 4, 2]),
        ((3, 64, 64, 8, 8), [2, 2, 2]),
    ],
)
def test_squares_are_large_if_that_takes_fewer_multiplications_and_there_is_much_to_sum_up(size, sides):
    count, ins, outs, height, width = size
    assert [square_size(what, count, height, width, ins, outs) for what in range(3)] == sides


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1, bias=False))


def compiled(model, **more):
    return fg.compile(model, backend="inductor", progress=False, **more)


@pytest.mark.parametrize("layout", ["contiguous", "channels last", "strided"])
def test_a_compiled_module_uses_it_in_any_layout(runs, layout):
    ours, theirs, x = net(), net(), torch.randn(4, 32, 23, 24)
    if layout == "channels last":
        x = x.contiguous(memory_format=torch.channels_last)
        ours, theirs = (one.to(memory_format=torch.channels_last) for one in (ours, theirs))
    elif layout == "strided":
        x = torch.randn(4, 32, 23, 48)[..., ::2]
    given = [x.detach().requires_grad_() for _ in range(2)]
    results = [compiled(ours)(given[0]), theirs(given[1])]
    for result in results:
        result.square().sum().backward()
    assert results[0].stride() == results[1].stride()
    found, expected = ([p.grad for p in (one, *model.parameters())] for one, model in zip(given, (ours, theirs)))
    for our, their in zip([results[0], *found], [results[1], *expected], strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5 * their.abs().max().item())
    assert layout == "strided" or sorted(runs) == [0, 0, 1, 1, 2, 2]


def test_second_derivatives(runs):
    def penalty(x, weight):
        (slope,) = torch.autograd.grad(F.conv2d(x, weight, padding=1).tanh().sum(), x, create_graph=True)
        return torch.autograd.grad(slope.square().sum(), (x, weight))

    x, weight = torch.randn(8, 32, 16, 16).requires_grad_(), torch.randn(32, 32, 3, 3).mul(0.05).requires_grad_()
    expected = penalty(x, weight)
    for our, their in zip(compiled(penalty)(x, weight), expected, strict=True):
        torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5 * their.abs().max().item())
    assert runs


def test_verify_finds_rounding_alone():
    assert "equal but for rounding" in str(compiled(net()).verify(torch.randn(8, 32, 16, 16)))


def test_it_can_be_turned_off(runs, monkeypatch):
    monkeypatch.setenv("FOREGRAD_WINOGRAD", "off")
    compiled(net())(torch.randn(8, 32, 16, 16))
    assert not runs


@pytest.mark.parametrize("channels", [32, 64])  # squares of two by two pixels, and of four by four
def test_what_is_not_finite_goes_no_further_than_in_eager(channels):
    model, x = nn.Conv2d(channels, 64, 3, padding=1), torch.randn(8, channels, 16, 16)
    x[0, 3, 8, 8] = float("inf")
    x[1, 3, 0, 15] = float("nan")
    ours, theirs = compiled(model)(x), model(x)
    is_finite = theirs.isfinite()
    assert torch.equal(ours.isfinite(), is_finite)  # though infinity may be NaN
    torch.testing.assert_close(ours[is_finite], theirs[is_finite])


SCRIPT = """
    import sys, torch, foregrad as fg
    from torch import nn

    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(32, 64, 3, padding=1), nn.Tanh(), nn.Conv2d(64, 32, 3, padding=1))
    x, cache = torch.randn(8, 32, 16, 16), fg.Cache(sys.argv[1])
    ours = fg.compile(model, backend="inductor", cache=cache, progress=False)
    if sys.argv[2] == "saved":
        ours = fg.load(sys.argv[1] + "/model.fg", state=model)
    y = ours(x)
    y.square().sum().backward()
    print(y.sum().item(), model[0].weight.grad.sum().item())
    has_ours = "foregrad.backends.kernels.convolutions" in sys.modules
    print(sys.argv[2] == "saved" or ours.captures[0].origin.how, has_ours)
    print([name for name in ("torch._inductor", "foregrad.record.recorder") if name in sys.modules])
    if sys.argv[2] == "first":
        ours.save(sys.argv[1] + "/model.fg")
"""


@pytest.mark.slow
def test_kept_programs_use_it_in_a_new_process(tmp_path):
    def run(how):
        command = [sys.executable, "-c", textwrap.dedent(SCRIPT), str(tmp_path), how]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    first = run("first")
    assert run("again") == [first[0], f"{FOUND} True", "[]"]
    assert run("saved") == [first[0], "True True", "[]"]


@pytest.mark.parametrize(
    ("batch", "channels", "side", "kernel", "gains"),
    [
        (4, 512, 2, 3, False),  # a large weight for 16 pixels
        (1, 512, 7, 3, False),
        (4, 512, 7, 3, True),
        (4, 512, 2, 1, True),  # laid out so already
        (4, 16, 2, 3, True),  # a small weight
    ],
)
def test_a_convolution_of_few_pixels_keeps_the_layout_of_its_weight(batch, channels, side, kernel, gains):
    net, x = (
        nn.Conv2d(channels, channels, kernel, padding=kernel // 2, bias=False),
        torch.randn(batch, channels, side, side),
    )
    program = channels_last(fg.capture(net, x))
    assert any(n.kwargs.get("memory_format") is torch.channels_last for n in program.graph.graph.nodes) == gains


def test_layouts_may_change_between_two_convolutions():
    """The first has many pixels, the second few and a large weight: a copy of the image stands between them."""
    net = nn.Sequential(nn.Conv2d(32, 512, 3, 4, 1), nn.BatchNorm2d(512), nn.ReLU(), nn.Conv2d(512, 64, 3, 2, 1))
    x = torch.randn(2, 32, 64, 32)
    ours = fg.compile(net, backend="inductor", cache=False, progress=False)(x)
    gradients = torch.autograd.grad(ours.sin().sum(), list(net.parameters()))
    theirs = net(x)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    wanted = torch.autograd.grad(theirs.sin().sum(), list(net.parameters()))
    torch.testing.assert_close(gradients, wanted, rtol=1e-3, atol=1e-4)

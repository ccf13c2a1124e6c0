"""Sizes that vary, compiled: sizes are inputs of compiled code, which one program has for all of them."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg
from tests.behaviours.test_dynamic import (
    ONE_PROGRAM,
    POSITIONS,
    Classifier,
    W,
    gradients,
    leaves,
    num_captures,
    trained,
    writes_to_views,
)
from tests.compare import leaf, only_with_eager

pytestmark = only_with_eager("it names its backends itself")

SIZES = ((3, 6), (5, 8), (4, 4), (7, 2))


def compiled(function, dynamic=True, **options):
    return fg.compile(function, **{"backend": "inductor", "cache": False} | options, dynamic=dynamic)


def assert_close(found, expected):
    """To rounding; what eager has no gradient for may be zeros."""
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        assert found == expected or not any(t.any() for t in (found, expected) if isinstance(t, torch.Tensor))
        return
    assert found.shape == expected.shape
    torch.testing.assert_close(found.detach(), expected.detach(), rtol=1e-3, atol=1e-3)


def assert_serves(function, num_programs=1, weights=(), sizes=SIZES, dynamic=None, width=4, **options):
    """One compiled function does what eager does for all sizes, and needs this many programs for it."""
    subject = compiled(function, {"x": (0, 1)} if dynamic is None else dynamic, **options)
    for size in sizes:
        x = leaf(*size, width)
        results = []
        for call in (function, subject):
            torch.manual_seed(0)
            outputs = leaves(call(x))
            first, second = gradients(outputs, x, weights)
            results.append([*outputs, *first, *second, torch.rand(1)])
        for found, expected in zip(results[1], results[0], strict=True):
            assert_close(found, expected)
    assert num_captures(subject) == num_programs, fg.explain(subject)
    return subject


def test_one_compiled_program_serves_all_sizes():
    def function(x):
        return (x @ W).tanh().sum(1) * x.shape[1]

    f = compiled(function)
    for size in SIZES:
        x = leaf(*size, 4)
        torch.testing.assert_close(f(x), function(x), rtol=1e-4, atol=1e-4)
        found, expected = (torch.autograd.grad(call(x).sum(), x)[0] for call in (f, function))
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
    (made,) = f.captures
    assert "size     x.1" in str(made)
    assert not [fallback for run in made.stage.cut_runs for fallback in run.fallbacks]


@pytest.mark.slow
@pytest.mark.parametrize("function", ONE_PROGRAM.values(), ids=ONE_PROGRAM)
def test_dyn1_forward_backward_and_second_derivatives(function):
    assert_serves(function, weights=(W, POSITIONS))


@pytest.mark.slow
def test_dyn1_writes_to_views():
    assert_serves(writes_to_views, num_programs=2)


@pytest.mark.slow
def test_dyn1_an_input_is_written():
    f = compiled(lambda x, y: x.mul_(x.shape[0]).add_(y))
    for length in (4, 6, 9):
        x = torch.ones(length, 3)
        assert f(x, torch.ones(length, 3)) is x
        assert x.unique().tolist() == [length + 1.0]
    assert num_captures(f) == 1


# What compilers assume


def test_what_a_compiler_assumes_is_checked_at_each_call():
    """Inductor adds up few numbers otherwise than many."""
    f = compiled(lambda x: x.sum() * 2)
    for length in (10, 1000, 65536, 65537, 300_000, 7):
        x = torch.ones(length)
        assert f(x).item() == 2.0 * length
    assert num_captures(f) == 2
    assert "as long as x.shape[0] <= 65536" in str(fg.explain(f))


# Regions


class Deep(nn.Module):
    def __init__(self, depth=6, width=16):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(depth)
        )

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x.square().mean()


@pytest.mark.slow
def test_blocks_are_compiled_once_with_their_sizes_as_inputs():
    model = Deep()
    f = compiled(model)
    for size in ((3, 5), (2, 9), (4, 7)):
        x = leaf(*size, 16)
        for call in (f, model):
            torch.testing.assert_close(call(x), model(x), rtol=1e-4, atol=1e-5)
        found, expected = (torch.autograd.grad(call(x), [x, *model.parameters()]) for call in (f, model))
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    (made,) = f.captures
    for half in made.regions:
        assert max(region.count for region in half.distinct) >= 5
        assert not any(region.fallbacks for region in half.distinct)


# Models


def image_net():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 8, 3), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
    )  # fmt: skip


@pytest.mark.slow
def test_images_of_many_sizes_and_a_smaller_last_batch():
    torch.manual_seed(0)
    reference, model = image_net(), image_net()
    model.load_state_dict(reference.state_dict())
    f = compiled(model, None)
    for count, side in ((4, 16), (4, 20), (4, 32), (4, 18), (3, 16), (3, 24)):
        x, y = torch.randn(count, 3, side, side), torch.randint(0, 3, (count,))
        for call, owner in ((f, model), (reference, reference)):
            owner.zero_grad()
            F.cross_entropy(call(x), y).backward()
        for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
            torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-4)
        for ours, theirs in zip(model.buffers(), reference.buffers(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert num_captures(f) == 3, fg.explain(f)


@pytest.mark.slow
def test_strides_of_convolutions_that_halve_images():
    """A size such as `(1 + (n - 1) // 2) ** 2` is divided by its root: a sum of powers could not be."""
    torch.manual_seed(0)
    norm, last = nn.BatchNorm2d(8), nn.Conv2d(8, 8, 3, stride=2, padding=1, bias=False)
    net = nn.Sequential(nn.Conv2d(3, 8, 3, stride=2, padding=1), norm, nn.ReLU(), last)
    f = compiled(net, None)
    for side in (16, 20, 32, 18):
        x = torch.randn(2, 3, side, side)
        losses = [call(x).mean((2, 3)).square().sum() for call in (f, net)]
        found, expected = (torch.autograd.grad(loss, [*net.parameters()]) for loss in losses)
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert num_captures(f) == 2, fg.explain(f)


@pytest.mark.slow
def test_a_loop_with_padded_batches_of_40_lengths():
    torch.manual_seed(0)
    reference, model = Classifier(), Classifier()
    model.load_state_dict(reference.state_dict())
    f = compiled(model, None)
    for found, expected in zip(trained(f, model), trained(reference, reference), strict=True):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert num_captures(f) <= 3, fg.explain(f)


@pytest.mark.slow
def test_a_training_step_with_batches_of_many_sizes():
    """Batch, length and the optimizer in one program."""
    torch.manual_seed(0)
    models = [nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())

    def step_of(model):
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)

        def train(x, y):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y) * x.shape[0] ** 0.5
            loss.backward()
            optimizer.step()
            return loss.detach()

        return train, optimizer

    (plain, _), (train, optimizer) = map(step_of, models)
    step = fg.step(models[1], optimizer, backend="inductor", cache=False)(train)
    for batch, length in ((3, 5), (5, 7), (7, 4), (4, 6), (6, 8), (2, 9)):
        x, y = torch.randn(batch, length, 4), torch.randn(batch, length, 2)
        torch.testing.assert_close(step(x, y), plain(x, y), rtol=1e-4, atol=1e-5)
        for ours, theirs in zip(models[1].parameters(), models[0].parameters(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert num_captures(step) == 2, fg.explain(step)  # the first creates the optimizer's state


def test_tensors_of_numbers_have_the_default_dtype():
    def function(i):
        known = torch.as_tensor(i.shape[0])
        return torch.scalar_tensor(i.shape[0]) * i, torch.scalar_tensor(3) / i.shape[0] + i.sum(), known

    f = fg.compile(function, backend="inductor", dynamic=True)
    for size in (4, 5, 6):
        found, expected = f(torch.arange(size)), function(torch.arange(size))
        assert [t.dtype for t in found] == [t.dtype for t in expected]
        torch.testing.assert_close(found, expected)

"""Every form of a training step with every form of a backward written in Python: six steps, as eager takes them.

A custom Function is given its tensors by a way of torch's own that no mode sees, and its backward may run Python,
modules and the autograd engine itself.
"""

import functools
import threading

import pytest
import torch
from torch import nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

import foregrad as fg
from foregrad.backends.toolchain import compiler


class Linear(torch.autograd.Function):
    """As in torch's tutorial on extending autograd."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


class LinearWithSetup(torch.autograd.Function):
    @staticmethod
    def forward(x, weight):
        return x @ weight.t()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


class LinearOfAttributes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight):
        ctx.x, ctx.weight = x.detach().clone(), weight
        return x @ weight.t()

    @staticmethod
    def backward(ctx, gradient):
        return gradient @ ctx.weight, gradient.t() @ ctx.x


class LinearOnce(Linear):
    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight, gradient.t() @ x


class LinearByEngine(Linear):
    """Asks the engine for its gradients, as adjoint methods do."""

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x, weight = (t.detach().requires_grad_() for t in ctx.saved_tensors)
            return torch.autograd.grad(x @ weight.t(), (x, weight), gradient)


class Adjoint(torch.autograd.Function):
    """Runs a module again in backward, and asks for the gradients of its parameters."""

    @staticmethod
    def forward(ctx, module, x, *parameters):
        ctx.module = module
        ctx.save_for_backward(x, *parameters)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, gradient):
        x, *parameters = ctx.saved_tensors
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            found = torch.autograd.grad(ctx.module(x), (x, *parameters), gradient, allow_unused=True)
        return (None, *found)


class Recompute(torch.autograd.Function):
    """Runs a module again in backward, whose parameters it was never given, and backward() inside it."""

    @staticmethod
    def forward(ctx, module, x):
        ctx.module = module
        ctx.save_for_backward(x)
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx, gradient):
        x = ctx.saved_tensors[0].detach().requires_grad_()
        with torch.enable_grad():
            torch.autograd.backward(ctx.module(x), gradient)
        return None, x.grad


linear = Linear.apply  # bound before anything is captured

LAYERS = {
    "save_for_backward": lambda layer, x: Linear.apply(x, layer.weight),
    "bound early": lambda layer, x: linear(x, layer.weight),
    "setup_context": lambda layer, x: LinearWithSetup.apply(x, layer.weight),
    "attributes": lambda layer, x: LinearOfAttributes.apply(x, layer.weight),
    "once differentiable": lambda layer, x: LinearOnce.apply(x, layer.weight),
    "engine in backward": lambda layer, x: LinearByEngine.apply(x, layer.weight),
    "adjoint": lambda layer, x: Adjoint.apply(layer, x, *layer.parameters()),
    "recompute": lambda layer, x: Recompute.apply(layer, x),
    "checkpoint": lambda layer, x: checkpoint(layer, x, use_reentrant=False),
    "reentrant checkpoint": lambda layer, x: checkpoint(layer, x, use_reentrant=True),
    "checkpoint of Function": lambda layer, x: checkpoint(Linear.apply, x, layer.weight, use_reentrant=True),
    "twice": lambda layer, x: Linear.apply(x, layer.weight) + Recompute.apply(layer, x) + layer(x),
    "through a view": lambda layer, x: Linear.apply(x, layer.weight[:, :4]),
    "hook on a value": lambda layer, x: _hooked(layer(x)),
}

#: Layers whose backward does not go on to gradients of gradients, or to given inputs only, in eager either.
BY_BACKWARD_ALONE = {"recompute", "reentrant checkpoint", "checkpoint of Function", "twice"}


def _hooked(y):
    if y.requires_grad:
        y.register_hook(lambda gradient: gradient * 0.5)
    return y


class Net(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(3, 4), nn.Linear(4, 4, bias=False), nn.Linear(4, 2)
        self.layer = layer

    def forward(self, x):
        return self.last(self.layer(self.middle, torch.tanh(self.first(x)))).square().mean()


def zero_first(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x)
    loss.backward()
    optimizer.step()
    return loss


def zero_last(model, optimizer, x):
    loss = model(x)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


def zeros_in_place(model, optimizer, x):
    optimizer.zero_grad(set_to_none=False)
    loss = model(x)
    loss.backward()
    optimizer.step()
    return loss


def accumulate(model, optimizer, x):
    optimizer.zero_grad()
    for part in x.chunk(2):
        loss = model(part)
        loss.backward()
    optimizer.step()
    return loss


def never_zero(model, optimizer, x):
    loss = model(x)
    loss.backward()
    optimizer.step()
    return loss


def retain_graph(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x)
    loss.backward(retain_graph=True)
    loss.backward()
    optimizer.step()
    return loss


def clipped(model, optimizer, x):
    model.zero_grad()
    loss = model(x)
    torch.autograd.backward(loss)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    optimizer.step()
    return loss


def zero_between(model, optimizer, x):
    loss = model(x)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    for parameter in model.parameters():
        parameter.grad.mul_(2)
    return loss


def by_grad(model, optimizer, x):
    optimizer.zero_grad()
    loss = model(x)
    parameters = list(model.parameters())
    for parameter, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        parameter.grad = gradient
    optimizer.step()
    return loss


def scaled(model, optimizer, x, scaler):
    optimizer.zero_grad()
    loss = model(x)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.1)
    scaler.step(optimizer)
    scaler.update()
    return loss


STEPS = {
    step.__name__: step
    for step in (
        zero_first, zero_last, zeros_in_place, zero_between, never_zero, accumulate, retain_graph, clipped, by_grad,
        scaled,
    )
}  # fmt: skip


def trained(layer, step, backend):
    """Losses, parameters and gradients after each of six steps; no backend is eager."""
    torch.manual_seed(0)
    model = Net(LAYERS[layer])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    state, function = (model, optimizer), functools.partial(STEPS[step], model, optimizer)
    if step == "scaled":
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        state, function = (*state, scaler), functools.partial(function, scaler=scaler)
    run = function if backend is None else fg.step(*state, backend=backend)(function)
    found = []
    for _ in range(6):
        found.append(run(torch.randn(6, 3)).detach().clone())
        for parameter in model.parameters():
            found.append(parameter.detach().clone())
            found.append(None if parameter.grad is None else parameter.grad.clone())
    return found


def assert_trains_as_eager(layer, step, backend, tolerance=0.0):
    expected, found = trained(layer, step, None), trained(layer, step, backend)
    for place, (a, b) in enumerate(zip(expected, found, strict=True)):
        assert (a is None) == (b is None), place
        assert a is None or torch.allclose(a, b, tolerance, tolerance), (place, a, b)


CASES = [(layer, step) for layer in LAYERS for step in STEPS if step != "by_grad" or layer not in BY_BACKWARD_ALONE]


@pytest.mark.parametrize(("layer", "step"), CASES)
def test_a_step_with_a_backward_of_ones_own(layer, step):
    assert_trains_as_eager(layer, step, "eager")


@pytest.mark.skipif(compiler() is None, reason="no compiler")
@pytest.mark.parametrize("backend", ["inductor", "aoti"])
@pytest.mark.parametrize("layer", ["save_for_backward", "reentrant checkpoint", "adjoint"])
def test_a_compiled_step_with_a_backward_of_ones_own(layer, backend):
    assert_trains_as_eager(layer, "zero_first", backend, tolerance=1e-5)


def outside_of_modes(layer, x):
    """What an extension in C++ does: torch's function modes see nothing of it."""
    with torch._C.DisableTorchFunction():
        return nn.functional.linear(x, layer.weight)


@pytest.mark.parametrize("step", [step for step in STEPS if step != "by_grad"])
def test_a_step_that_differentiates_where_no_mode_can_see(step, monkeypatch):
    monkeypatch.setitem(LAYERS, "outside of modes", outside_of_modes)
    assert_trains_as_eager("outside of modes", step, "eager")


def penalized(model, optimizer, x):
    """Second derivatives through a Function."""
    optimizer.zero_grad()
    gradients = torch.autograd.grad(model(x), list(model.parameters()), create_graph=True)
    loss = sum(gradient.square().sum() for gradient in gradients)
    loss.backward()
    optimizer.step()
    return loss


@pytest.mark.parametrize("layer", ["save_for_backward", "bound early", "setup_context", "through a view"])
def test_a_step_with_second_derivatives_through_a_function(layer, monkeypatch):
    monkeypatch.setitem(STEPS, "penalized", penalized)
    assert_trains_as_eager(layer, "penalized", "eager")


def test_functions_of_other_threads_are_left_alone():
    weight, results, is_over = torch.ones(2, 2, requires_grad=True), [], threading.Event()

    def other():
        while not is_over.is_set():
            out = Linear.apply(torch.ones(1, 2), weight)
            results.append(torch.autograd.grad(out.sum(), weight)[0])

    thread = threading.Thread(target=other)
    thread.start()
    for _ in range(20):
        fg.compile(lambda x: Linear.apply(x, weight), backend="eager")(torch.ones(1, 2)).sum().backward()
    is_over.set()
    thread.join()
    assert all(torch.equal(found, torch.ones(2, 2)) for found in results)
    assert "apply" not in vars(torch.autograd.function._SingleLevelFunction)
    assert torch.equal(weight.grad, torch.full((2, 2), 20.0))

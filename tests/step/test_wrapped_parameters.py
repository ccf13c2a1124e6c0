"""Steps whose parameters wrap others (`__tensor_flatten__`). Eager is the reference: gradients, state, updates."""

import pytest
import torch
from torch import nn
from torch.testing._internal.two_tensor import TwoTensor

import foregrad as fg
from tests.behaviours.test_subclasses import Grads, facts
from tests.compare import BACKEND, also_compiled


class Scaled(torch.Tensor):
    """Small integers and a scale, which stand for floats: what is computed from it, and its gradient, are plain."""

    @staticmethod
    def __new__(cls, units, scale):
        made = torch.Tensor._make_wrapper_subclass(cls, units.shape, dtype=scale.dtype, device=units.device)
        made.units, made.scale = units, scale
        return made

    def __tensor_flatten__(self):
        return ["units", "scale"], None

    @classmethod
    def __tensor_unflatten__(cls, parts, context, size, stride):
        return cls(parts["units"], parts["scale"])

    def plain(self):
        return self.units.to(self.scale.dtype) * self.scale

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        if func is nn.functional.linear:
            return ScaledLinear.apply(*args)
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        first, others = args[0], [a.plain() if isinstance(a, Scaled) else a for a in args]
        if func is torch.ops.aten.detach.default:
            return cls(first.units.detach(), first.scale.detach())
        result = func(*others, **(kwargs or {}))
        if func._schema.is_mutable and isinstance(first, Scaled):
            first.units.copy_((others[0] / first.scale).round())
            return first
        return result


class ScaledLinear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bias):
        ctx.save_for_backward(x, weight)
        return x @ weight.plain().t() + bias

    @staticmethod
    def backward(ctx, gradient):
        x, weight = ctx.saved_tensors
        return gradient @ weight.plain(), gradient.t() @ x, gradient.sum(0)


def doubled(module):
    """A module whose weight wraps two tensors."""
    with torch.no_grad():
        module.weight = nn.Parameter(TwoTensor(module.weight.clone(), module.weight * 2))
    return module


def model():
    return nn.Sequential(doubled(nn.Linear(3, 4)), nn.Tanh(), nn.Linear(4, 2, bias=False))


def told(net, optimizer):
    """What can be seen of a model and its optimizer."""
    parameters = list(net.parameters())
    state = [optimizer.state[p] for p in parameters]
    saved = [v for kept in optimizer.state_dict()["state"].values() for v in kept.values()]
    return facts([[p.detach() for p in parameters], Grads(p.grad for p in parameters), state, saved])


def same_steps(make, *, num_steps=3, clears="before", change=lambda net: None, prepare=lambda net: net):
    """Train by a step, and the same without it; after each step all that can be seen is the same."""
    found = []
    for decorate in (lambda *state: lambda step: step, lambda *state: fg.step(*state, backend=BACKEND)):
        torch.manual_seed(0)
        net = prepare(model())
        optimizer = make(net.parameters())

        @decorate(net, optimizer)
        def step(x, net=net, optimizer=optimizer):
            if clears in ("before", "to zero"):
                optimizer.zero_grad(set_to_none=clears == "before")
            loss = net(x).square().sum()
            loss.backward()
            optimizer.step()
            if clears == "after":
                optimizer.zero_grad()
            return loss

        seen = []
        for number in range(num_steps):
            loss = step(torch.full((2, 3), 1.0 + number))
            seen += [facts(loss.detach()), told(net, optimizer)]
            change(net)
        found.append(seen)
    eagers, ours = found
    assert ours == eagers
    return step


OPTIMIZERS = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.1, nesterov=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1),
}


@pytest.mark.parametrize("name", [*OPTIMIZERS, pytest.param("adamw", marks=also_compiled, id="adamw, compiled")])
def test_parameters_gradients_and_state_that_wrap_others_go_as_in_eager(name):
    step = same_steps(OPTIMIZERS[name])
    assert len(step.captures) <= 3  # without gradients and state, with them


def test_gradients_that_wrap_others_add_up_where_they_are_not_cleared():
    same_steps(OPTIMIZERS["adamw"], clears="never")


def test_gradients_that_wrap_others_are_none_where_they_are_cleared_last():
    same_steps(OPTIMIZERS["adamw"], clears="after")


def test_gradients_that_wrap_others_may_be_kept_and_zeroed():
    same_steps(OPTIMIZERS["adamw"], clears="to zero")


def test_a_class_whose_gradients_are_plain_tensors():
    def scaled(net):
        net[0].weight = nn.Parameter(Scaled(torch.randint(-50, 50, (4, 3)).to(torch.int8), torch.tensor(0.01)))
        return net

    for optimizer in OPTIMIZERS.values():
        same_steps(optimizer, prepare=scaled)


def test_a_fused_optimizer_is_refused():
    with pytest.raises(fg.CaptureError, match="fused=False"):
        same_steps(lambda p: torch.optim.AdamW(p, fused=True))


def test_a_written_parameter_of_which_a_plain_tensor_is_a_view_is_refused():
    class Plain(Scaled):
        __torch_function__ = torch._C._disabled_torch_function_impl

    def scaled(net):
        net[0].weight = nn.Parameter(Plain(torch.randint(-50, 50, (4, 3)).to(torch.int8), torch.tensor(0.01)))
        return net

    with pytest.raises(fg.CaptureError, match="of which a plain tensor is a view"):
        same_steps(OPTIMIZERS["sgd"], prepare=scaled)


def test_the_same_tensors_are_updated_in_place():
    net = model()
    inner, optimizer = net[0].weight.a, torch.optim.SGD(net.parameters(), lr=0.1)
    before = inner.clone()

    @fg.step(net, optimizer, backend=BACKEND)
    def step(x):
        optimizer.zero_grad()
        net(x).sum().backward()
        optimizer.step()

    step(torch.ones(2, 3))
    assert net[0].weight.a is inner
    assert not torch.equal(inner, before)


def test_gradients_and_parameters_that_the_user_replaces_are_noticed():
    def change(net):
        net[0].weight.grad = None
        with torch.no_grad():
            net[0].weight.mul_(0.5)

    same_steps(OPTIMIZERS["adamw"], clears="never", change=change)


def test_flags_hooks_and_inner_tensors_that_the_user_changes_are_noticed():
    def freeze(net):
        net[0].weight.requires_grad_(not net[0].weight.requires_grad)

    def add_hook(net):
        if net[0].weight.requires_grad:
            net[0].weight.register_hook(lambda gradient: gradient * 2)

    def renew(net):
        net[0].weight.a = net[0].weight.a.detach().clone()

    for change in (freeze, add_hook, renew):
        same_steps(OPTIMIZERS["adamw"], num_steps=4, change=change)


def test_a_gradient_that_wraps_others_is_read_and_scaled_inside():
    found = []
    for wrap in (lambda fn: fn, lambda fn: fg.compile(fn, backend=BACKEND)):
        torch.manual_seed(0)
        net = model()

        def scale(x, net=net):
            net(x).sum().backward()
            net[0].weight.grad.mul_(2)
            return net[0].weight.grad.sum()

        f = wrap(scale)
        found.append(facts([f(torch.ones(2, 3)), f(torch.ones(2, 3)), Grads(p.grad for p in net.parameters())]))
    assert found[0] == found[1]

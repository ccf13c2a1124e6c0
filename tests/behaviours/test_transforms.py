"""Transforms of `torch.func` inside the function, around modules and tensors that it reaches for by itself."""

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

from tests.compare import HigherGradients, assert_refused, same_as_eager, some_compiled


def setup():
    """A module, a tensor with a gradient, one without."""
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    return net, torch.randn(3, 3, dtype=torch.float64, requires_grad=True), torch.randn(3, dtype=torch.float64)


def parameters(net):
    return dict(net.named_parameters())


def loss(net, x):
    return net(x).square().sum()


#: Functions of a module, of two tensors that are variables of the function, and of its argument.
FUNCTIONS = {
    "jacrev": lambda net, w, c, x: jacrev(net)(x[0]),
    "jacfwd": lambda net, w, c, x: jacfwd(net)(x[0]),
    "hessian": lambda net, w, c, x: hessian(lambda t: net(t).sum())(x[0]),
    "jvp": lambda net, w, c, x: sum(t.sum() for t in jvp(net, (x,), (torch.ones_like(x),))),
    "vjp": lambda net, w, c, x: vjp(net, x)[1](torch.ones(5, 2, dtype=x.dtype))[0],
    "vmap": lambda net, w, c, x: vmap(net)(x),
    "grad": lambda net, w, c, x: grad(lambda t: loss(net, t))(x),
    "vmap of grad": lambda net, w, c, x: vmap(grad(lambda t: loss(net, t)))(x),
    "vmap of jacrev": lambda net, w, c, x: vmap(jacrev(net))(x),
    "a Laplacian": lambda net, w, c, x: vmap(lambda t: hessian(lambda s: net(s).sum())(t).trace())(x),
    "variables": lambda net, w, c, x: vmap(lambda row: jacrev(lambda t: (w @ t * c).sin())(row))(x),
    "a write beside": lambda net, w, c, x: vmap(lambda row: w @ row)(x) + c.clone().mul_(2),
    "grad of parameters": lambda net, w, c, x: grad(lambda p: functional_call(net, p, (x,)).square().sum())(
        parameters(net)
    )["0.weight"],
    "jacrev of parameters": lambda net, w, c, x: jacrev(lambda p: functional_call(net, p, (x[0],)))(parameters(net))[
        "2.weight"
    ],
    "an ensemble": lambda net, w, c, x: vmap(lambda p: functional_call(net, {"0.weight": p}, (x,)))(
        torch.stack([net[0].weight, net[0].weight * 2])
    ),
    "gradients of each sample": lambda net, w, c, x: (
        vmap(grad(lambda p, t: functional_call(net, p, (t,)).square().sum()), in_dims=(None, 0))(
            {k: p.detach() for k, p in net.named_parameters()}, x
        )["0.weight"]
        * w.sum()
    ),
    "first met in a transform, then outside": lambda net, w, c, x: vmap(net)(x) * net(x).sum() * w.sum(),
}


@pytest.mark.parametrize("name", some_compiled(FUNCTIONS, "vmap of grad", "hessian", "an ensemble"))
@same_as_eager
def test_a_transform_of_what_the_function_reaches_for(wrap, name):
    net, w, c = setup()
    run = wrap(lambda x: FUNCTIONS[name](net, w, c, x))
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    outs = [run(x), run(x * 2)]
    return HigherGradients(
        [*outs, *torch.autograd.grad(sum(o.sin().sum() for o in outs), [x, w, *net.parameters()], allow_unused=True)]
    )


@same_as_eager
def test_a_step_with_a_laplacian_as_its_loss(wrap):
    net, _, _ = setup()

    def f(x):
        found = vmap(lambda t: hessian(lambda s: net(s).sum())(t).trace())(x)
        found.square().sum().backward()
        return found

    run = wrap(f)
    outs = [run(torch.randn(5, 3, dtype=torch.float64)) for _ in range(2)]
    return HigherGradients([*outs, *(p.grad for p in net.parameters())])


@same_as_eager
def test_backward_through_transforms_that_are_given_parameters(wrap):
    net, w, _ = setup()

    def f(x):
        rows = vmap(lambda row: row.sin() * x[0])(w)
        first = grad(lambda p: functional_call(net, p, (x,)).square().sum())(parameters(net))
        (rows.sum() + sum(g.square().sum() for g in first.values())).backward()
        return rows

    run = wrap(f)
    outs = [run(torch.randn(5, 3, dtype=torch.float64)) for _ in range(3)]
    return HigherGradients([*outs, w.grad, *(p.grad for p in net.parameters())])


def test_a_trace_of_its_own_is_refused():
    net, _, _ = setup()

    def f(x):
        return linearize(net, x)[1](x)

    assert_refused(f, (torch.randn(5, 3, dtype=torch.float64),), at="linearize")
    assert not torch.fx._symbolic_trace.is_fx_tracing()  # variables of torch's modules are left to torch

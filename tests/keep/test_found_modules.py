"""Modules in variables of a function: what is found without tracing reads those of its own process."""

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.keep.warm import CAPTURED, FOUND

net = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


def of_a_global(x):
    return net(x)


def of_a_closure(own):
    def function(x):
        return own(x)

    return function


class Trainer:
    def __init__(self, own):
        self.own = own

    def loss(self, x):
        return self.own(x)


def in_a_global(own):
    globals()["net"] = own
    return of_a_global


WAYS = {"a global": in_a_global, "a closure": of_a_closure, "an object": lambda own: Trainer(own).loss}


def new_net(seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))


def trained(call, own):
    """A result and the gradients of the parameters."""
    own.zero_grad()
    result = call(torch.ones(2, 3))
    result.square().sum().backward()
    return [result.detach(), *(p.grad.clone() for p in own.parameters())]


@pytest.mark.parametrize("way", WAYS)
def test_a_module_in_a_variable_is_found(way, tmp_path):
    origins = []
    for seed in (0, 1):  # as in two processes: other modules of the same layout
        own = new_net(seed)
        function = WAYS[way](own)
        expected = trained(function, own)
        compiled = fg.compile(function, backend="eager", cache=str(tmp_path))
        torch.testing.assert_close(trained(compiled, own), expected)
        origins.append(compiled.origin.how)
    assert origins == [CAPTURED, FOUND]


@pytest.mark.parametrize("way", ["a global", "a closure"])
def test_what_was_found_follows_a_module_that_is_replaced(way, tmp_path):
    for _ in range(2):
        first, second = new_net(0), new_net(1)
        function = WAYS[way](first)
        compiled = fg.compile(function, backend="eager", cache=str(tmp_path))
        trained(compiled, first)
        if way == "a global":
            in_a_global(second)
        else:
            function.__closure__[0].cell_contents = second
        torch.testing.assert_close(trained(compiled, second), trained(second, second))

"""Backwards that run the engine themselves: reentrant checkpoints, and Functions that run a module again."""

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from tests.compare import also_compiled, grads_of, leaf, same_as_eager


class Recompute(torch.autograd.Function):
    """Runs a module again in backward, and backward() in it, which reaches parameters that no node knows of."""

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


WAYS = {
    "reentrant checkpoint": lambda module, x: checkpoint(module, x, use_reentrant=True),
    "nested": lambda module, x: checkpoint(lambda t: checkpoint(module, t, use_reentrant=True), x, use_reentrant=True),
    "function": Recompute.apply,
    "both kinds": lambda module, x: module(x) + checkpoint(module, x, use_reentrant=True),
}


class Model(nn.Module):
    """Blocks that are computed again, then logits and a loss; one parameter is not used, one is frozen."""

    def __init__(self, way, dropout):
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(dropout))
        self.second, self.head, self.unused = nn.Linear(4, 4), nn.Linear(4, 3), nn.Linear(2, 2)
        self.second.bias.requires_grad_(False)
        self.way = way

    def forward(self, x):
        logits = self.head(self.way(self.second, self.way(self.first, x)))
        return logits, logits.square().mean()


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("way", WAYS)
@same_as_eager
def test_a_backward_that_runs_another_one(wrap, way, used):
    model = Model(WAYS[way], 0.5 if "reentrant" in way else 0.0)
    run, x = wrap(model), leaf(5, 4)
    for _ in range(2):
        results = run(x)
        sum(results[place].sum() for place in used).backward()
    return results, grads_of(x, *model.parameters())


@also_compiled
@pytest.mark.parametrize("has_gradient", [True, False])
@same_as_eager
def test_gradients_of_a_checkpoint_whose_input_needs_one_or_not(wrap, has_gradient):
    model = Model(WAYS["reentrant checkpoint"], 0.0)
    x = torch.randn(5, 4).requires_grad_(has_gradient)
    results = wrap(model)(x)
    results[1].backward()
    return results, grads_of(x, *model.parameters())


@same_as_eager
def test_gradients_that_leaves_hold_already_are_added_to(wrap):
    model = Model(WAYS["function"], 0.0)
    run, start = wrap(model), leaf(5, 4)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter) if parameter.requires_grad else None
    run(start * 2)[1].backward()
    run(start * 2)[1].backward()
    return grads_of(start, *model.parameters())


@pytest.mark.parametrize("used", [(0,), (1,), (0, 1)], ids=str)
@pytest.mark.parametrize("way", WAYS)
@same_as_eager
def test_a_result_beside_a_backward_that_runs_another_one(wrap, way, used):
    module, x, w = nn.Linear(4, 4), leaf(5, 4), leaf(4)
    results = wrap(lambda x: (WAYS[way](module, x), x * w))(x)
    sum(results[place].sum() for place in used).backward()
    return results, grads_of(x, w, *module.parameters())

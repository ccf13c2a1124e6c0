"""Compiled steps: the same training but for rounding, one graph for all values of the numbers."""

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ExponentialLR, OneCycleLR

import foregrad as fg
from foregrad.backends.toolchain import compiler
from tests.step.training import assert_same, train

pytestmark = pytest.mark.skipif(compiler() is None, reason="no compiler")

#: A few steps in single precision, sums in another order.
TOLERANCE = 1e-4
OPTIMIZERS = {
    "SGD": lambda g: torch.optim.SGD(g, lr=0.05, momentum=0.9, nesterov=True, weight_decay=0.1),
    "AdamW foreach": lambda g: torch.optim.AdamW(g, lr=0.05, foreach=True),
    "AdamW fused": lambda g: torch.optim.AdamW(g, lr=0.05, fused=True),
    "NAdam": lambda g: torch.optim.NAdam(g, lr=0.05),
    "Rprop": lambda g: torch.optim.Rprop(g, lr=0.05),
    "Adafactor": lambda g: torch.optim.Adafactor(g, lr=0.05),
    "RMSprop": lambda g: torch.optim.RMSprop(g, lr=0.05, centered=True, momentum=0.9, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_compiled_step_trains_as_eager_does(name, recwarn):
    def run(backend):
        schedule = ExponentialLR if name != "AdamW fused" else OneCycleLR
        options = {"gamma": 0.9} if schedule is ExponentialLR else {"max_lr": 0.1, "total_steps": 20}
        return train(OPTIMIZERS[name], lambda o: schedule(o, **options), num_steps=6, backend=backend, reload_at=4)

    ours = run("inductor")
    assert_same(run(None), ours, TOLERANCE)
    assert len(ours.step.captures) <= 3, str(fg.explain(ours.step))
    assert not [w for w in recwarn if "could not compile" in str(w.message)]


def test_a_step_as_a_library():
    def run(backend):
        return train(OPTIMIZERS["AdamW foreach"], lambda o: ExponentialLR(o, 0.9), num_steps=5, backend=backend)

    assert_same(run(None), run("aoti"), TOLERANCE)


def test_a_step_can_be_verified_and_stays_as_it_was():
    torch.manual_seed(0)
    model = nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)

    @fg.step(model, optimizer, backend="inductor")
    def step(x):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        return loss

    x = torch.randn(4, 3)
    assert step.verify(x).is_equal
    assert not optimizer.state
    step(x)
    before = [model.weight.detach().clone(), model.weight.grad]
    assert step.verify(x).is_equal
    assert torch.equal(model.weight, before[0])
    assert model.weight.grad is before[1]

"""Numbers that a kernel takes are read once, unless it may write them."""

import copy

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.backends import choose
from foregrad.backends.kernels import build
from foregrad.backends.kernels.build import in_one_file

pytestmark = pytest.mark.skipif(choose.compiler() is None, reason="there is no C++ compiler")


def step_of(model, optimizer, x):
    def step():
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    return step


@pytest.fixture
def written(monkeypatch):
    """The C++ of all kernels that are written."""
    found = []

    def noted(kernels, call=""):
        found.extend(kernel.body for kernel in kernels)
        return in_one_file(kernels, call)

    monkeypatch.setattr(build, "in_one_file", noted)
    return found


def kernels_of_a_step(written, dtype):
    model = nn.Linear(8, 8, dtype=dtype)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.randn(4, 8, dtype=dtype)
    fg.step(model, optimizer, backend="inductor", cache=False)(step_of(model, optimizer, x))()
    return [body for body in written if "number_" in body]


def test_a_number_is_read_before_the_loop(written):
    bodies = kernels_of_a_step(written, torch.float32)
    assert bodies
    for body in bodies:
        assert body.index("auto const number_in_ptr") < body.index("for(")
        name = body.partition("auto const number_")[2].partition(" ")[0]
        assert body.count(f"{name}[") == 1


def test_a_number_that_the_kernel_may_write_is_read_where_it_is_used(written):
    bodies = kernels_of_a_step(written, torch.float64)
    assert bodies
    for body in bodies:
        assert "auto const& number_in_ptr" in body
        assert "auto const number_" not in body


def test_a_number_that_changes_between_calls_is_read_at_each():
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    models = model, copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.1) for one in models]

    eager = step_of(models[0], optimizers[0], x)
    ours = fg.step(models[1], optimizers[1], backend="inductor")(step_of(models[1], optimizers[1], x))
    for rate in (0.1, 0.3, 0.01, 0.2):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        eager()
        ours()
    torch.testing.assert_close(models[1].weight, models[0].weight, rtol=1e-5, atol=1e-6)
    assert len(ours.captures) == 2

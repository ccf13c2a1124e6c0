"""Numbers that a kernel takes are read once, unless it may write them."""

import copy

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.backends import choose
from foregrad.backends.kernels.scalars import read_once

READ = "[static_cast<int64_t>(0L)]"


def kernel(parameters, body):
    return f"void kernel({parameters})\n{{\n    {body}\n}}\n"


def test_a_number_is_read_before_the_loop():
    before = kernel("const double* in_ptr0, float* out_ptr0", f"for (;;) out_ptr0[i] = in_ptr0{READ} + in_ptr0{READ};")
    after = read_once(before)
    assert after.count("in_ptr0[") == 1
    assert after.index("const double number_0 = in_ptr0[0];") < after.index("for (;;)")
    assert "out_ptr0[i] = number_0 + number_0;" in after


@pytest.mark.parametrize(
    ("parameters", "body"),
    [
        ("const double* in_ptr0, double* out_ptr0", f"out_ptr0[1] = in_ptr0{READ};"),
        ("double* in_out_ptr0, const double* in_ptr0", f"in_out_ptr0[1] = in_ptr0{READ};"),
        ("const double* in_ptr0, float* out_ptr0", f"out_ptr0[1] = in_ptr0{READ} + in_ptr0[static_cast<int64_t>(x0)];"),
        ("const float* in_ptr0, float* out_ptr0", f"out_ptr0[1] = in_ptr0{READ};"),
        ("const double* in_ptr0, float* out_ptr0", f"out_ptr0[1] = in_ptr00{READ};"),
    ],
)
def test_what_may_be_written_or_is_no_number_stays(parameters, body):
    assert read_once(kernel(parameters, body)) == kernel(parameters, body)


@pytest.mark.skipif(choose.compiler() is None, reason="there is no C++ compiler")
def test_a_number_that_changes_between_calls_is_read_at_each():
    torch.manual_seed(0)
    model, x = nn.Linear(8, 8), torch.randn(4, 8)
    models = model, copy.deepcopy(model)
    optimizers = [torch.optim.AdamW(one.parameters(), lr=0.1) for one in models]

    def step_of(model, optimizer):
        def step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        return step

    eager = step_of(models[0], optimizers[0])
    ours = fg.step(models[1], optimizers[1], backend="inductor")(step_of(models[1], optimizers[1]))
    for rate in (0.1, 0.3, 0.01, 0.2):
        for optimizer in optimizers:
            optimizer.param_groups[0]["lr"] = rate
        eager()
        ours()
    torch.testing.assert_close(models[1].weight, models[0].weight, rtol=1e-5, atol=1e-6)
    assert len(ours.captures) == 2

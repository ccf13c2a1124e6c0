"""Ops that write to an `out=` argument of another dtype compute in that dtype."""

import pytest
import torch

import foregrad as fg

X = torch.randn(64, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64])
@pytest.mark.parametrize("op", [torch.sum, torch.mean, torch.prod, torch.cumsum, torch.cumprod, torch.nansum])
def test_a_sum_is_added_up_in_the_dtype_of_its_out_argument(op, dtype):
    def f(x, out):
        return op(x, 0, out=out)

    def run(function):
        out = torch.zeros(op(X, 0).shape, dtype=dtype)
        function(X, out)
        return out

    try:
        expected = run(f)
    except RuntimeError as error:
        with pytest.raises(RuntimeError, match=str(error)[:20]):
            run(fg.compile(f, backend="eager", cache=False))
        return
    assert torch.equal(run(fg.compile(f, backend="eager", cache=False)), expected)

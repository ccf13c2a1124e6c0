"""Means, variances and batch norms of compiled code: as near to the exact ones as eager's."""

import copy

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.backends import choose

pytestmark = pytest.mark.skipif(choose.compiler() is None, reason="there is no C++ compiler")


def compiled(target):
    return fg.compile(target, backend="inductor", cache=False, progress=False)


def far(found, exact):
    return float((found.double() - exact).abs().max() / exact.abs().max())


def net():
    torch.manual_seed(0)
    norm, conv = nn.BatchNorm2d(32), nn.Conv2d(3, 32, 3, padding=1, bias=False)
    return nn.Sequential(conv, norm, nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU())


def test_statistics_of_batch_norms_do_not_drift_away_from_eager():
    """Three epochs, each step compared with double precision: never more than a few times as far as eager."""
    nets = {"eager": net(), "ours": net(), "exact": net().double()}
    runs = {**nets, "ours": compiled(nets["ours"])}
    optimizers = {name: torch.optim.SGD(one.parameters(), lr=0.1, momentum=0.9) for name, one in nets.items()}
    data = [torch.randn(8, 3, 16, 16) for _ in range(4)]
    for x in data * 3:
        for name, run in runs.items():
            optimizers[name].zero_grad()
            run(x.double() if name == "exact" else x).square().mean().backward()
            optimizers[name].step()
        exact = dict(nets["exact"].named_buffers())
        for name, value in nets["ours"].named_buffers():
            eager = far(dict(nets["eager"].named_buffers())[name], exact[name])
            assert far(value, exact[name]) <= 8 * eager + 1e-6, name


@pytest.mark.parametrize(
    "norm",
    [
        nn.BatchNorm1d(6),
        nn.BatchNorm1d(6, affine=False),
        nn.BatchNorm1d(6, track_running_stats=False),
        nn.BatchNorm1d(6).eval(),
        nn.BatchNorm1d(6).double(),
    ],
    ids=["usual", "without weight", "without statistics", "eval", "double"],
)
def test_batch_norms_their_gradients_and_statistics_are_eagers(norm):
    ours, theirs = copy.deepcopy(norm), norm
    results = []
    for run, module in ((compiled(ours), ours), (theirs, theirs)):
        torch.manual_seed(0)
        x = (torch.randn(12, 6, 5) * 3 + 50).to(next(iter([*norm.buffers()]), torch.ones(())).dtype).requires_grad_()
        y = run(x)
        results.append([y, *torch.autograd.grad(y.sin().sum(), [x, *module.parameters()]), *module.buffers()])
    for got, wanted in zip(*results, strict=True):
        assert got.dtype == wanted.dtype
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


FORMS = {
    "all": lambda x: x.var(),
    "rows": lambda x: x.std(0),
    "columns": lambda x: x.var(1, keepdim=True),
    "both": lambda x: x.std((0, 1), correction=0),
    "with mean": lambda x: torch.cat(torch.var_mean(x, -1)),
    "with mean, root": lambda x: torch.cat(torch.std_mean(x, 0, correction=2)),
    "too few": lambda x: x[:1].var(0),
    "none to spare": lambda x: x[:2].var(0, correction=3),
    "one number": lambda x: x[0, 0].var(correction=0),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.filterwarnings("ignore:.*degrees of freedom")
def test_variances_of_numbers_far_from_zero_are_eagers(form):
    x = (torch.randn(1000, 7) + 1000).requires_grad_()
    ours, wanted = compiled(FORMS[form])(x), FORMS[form](x)
    torch.testing.assert_close(ours, wanted, rtol=2e-6, atol=0, equal_nan=True)
    gradients = [torch.autograd.grad(y.sum(), x)[0] for y in (ours, wanted)]
    torch.testing.assert_close(*gradients, rtol=1e-4, atol=2e-4, equal_nan=True)  # the last bit of a mean is 6e-5

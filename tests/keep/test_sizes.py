"""Programs in which sizes vary, kept: in a cache, where the next process finds them with other sizes, and in files."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg
from foregrad.cache.serialize.size_code import computed
from tests.compare import leaf, only_with_eager

pytestmark = only_with_eager("it names its backends itself")
BACKENDS = ["eager", pytest.param("inductor", marks=pytest.mark.slow)]


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.line = nn.Linear(4, 3)

    def forward(self, batch, table):
        x = batch["x"]
        scores = self.line(x).tanh() @ table.T
        return scores.softmax(-1).sum((0, 1)) / x.shape[0] ** 0.5, x.shape[1]


def call_of(call, size):
    x, table = leaf(*size, 4), leaf(size[1], 3)
    out, length = call({"x": x}, table)
    first = torch.autograd.grad(out.square().sum(), (x, table), create_graph=True)
    second = torch.autograd.grad(sum(one.sin().sum() for one in first), (x, table))
    return x, table, [out, *first, *second], length


def assert_like_eager(compiled, net, size):
    torch.manual_seed(size[0] * 100 + size[1])
    *_, found, length = call_of(compiled, size)
    torch.manual_seed(size[0] * 100 + size[1])
    *_, expected, _ = call_of(net, size)
    assert length == size[1]
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_second_process_that_sees_other_sizes_traces_none(tmp_path, backend, dynamic):
    first, second = Net(), Net()
    compiled = fg.compile(first, backend=backend, dynamic=dynamic, cache=tmp_path)
    for size in ((2, 5), (3, 7), (4, 9)):
        assert_like_eager(compiled, first, size)
    again = fg.compile(second, backend=backend, dynamic=dynamic, cache=tmp_path)
    for size in ((5, 11), (2, 5), (7, 3), (3, 7), (2, 30)):
        assert_like_eager(again, second, size)
    origins = [capture.origin.how for capture in again.captures]
    assert set(origins) == {"found without tracing"}, fg.explain(again)
    assert "may vary" in str(fg.explain(again))


def test_each_of_several_programs_is_found_by_its_guards(tmp_path):
    def either(x):
        return x.cumsum(0) if x.shape[0] > 8 else x * 2

    for _ in range(2):
        compiled = fg.compile(either, backend="eager", dynamic=True, cache=tmp_path)
        for length in (10, 4, 12, 5):
            x = torch.randn(length, 2)
            assert torch.equal(compiled(x), either(x))
    assert [capture.origin.how for capture in compiled.captures] == ["found without tracing"] * 2
    assert any("x.shape[0] > 8" in line for capture in compiled.captures for line in capture.conditions.lines())


def test_what_was_kept_for_a_length_is_not_used_for_another_rank_or_for_one(tmp_path):
    def total(x):
        return (x * x.shape[0]).sum(0)

    for _ in range(2):
        compiled = fg.compile(total, backend="eager", dynamic=True, cache=tmp_path)
        for x in (torch.ones(4, 3), torch.ones(1, 3), torch.ones(5), torch.ones(6, 1), torch.ones(3, 4).T):
            assert torch.equal(compiled(x), total(x))


def test_a_find_is_checked_against_a_capture_with_sizes_that_vary(tmp_path):
    def double(x):
        return x * x.shape[0]

    fg.compile(double, backend="eager", dynamic=True, cache=tmp_path)(torch.ones(3))
    checking = fg.Cache(tmp_path, verify_every=1)
    compiled = fg.compile(double, backend="eager", dynamic=True, cache=checking)
    compiled(torch.ones(5))
    checking.wait()
    assert "checked: a capture gives the same program" in str(compiled.captures[0].origin)


def step_of(model, cache, backend):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    @fg.step(model, optimizer, backend=backend, cache=cache)
    def train(x, y):
        optimizer.zero_grad()
        loss = F.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return train


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_step_of_any_batch_is_found_by_the_next_process(tmp_path, backend):
    def losses(sizes):
        torch.manual_seed(0)
        model = nn.Linear(4, 2)
        train = step_of(model, tmp_path, backend)
        return train, [train(torch.ones(size, 4) / size, torch.ones(size, 2)).item() for size in sizes]

    sizes = (4, 6, 7, 5, 9)
    _, first = losses(sizes)
    train, second = losses(sizes)
    assert second == pytest.approx(first, rel=1e-4)
    assert "captured" not in [capture.origin.how for capture in train.captures], fg.explain(train)


@pytest.mark.slow
@pytest.mark.parametrize("is_trusted", [True, False])
def test_a_file_with_compiled_code_serves_all_sizes(tmp_path, is_trusted, monkeypatch):
    net = Net()
    compiled = fg.compile(net, backend="inductor", dynamic=True, cache=False)
    *_, out, _ = call_of(compiled, (3, 5))
    compiled.save(tmp_path / "net.fg")
    if not is_trusted:
        monkeypatch.setenv("FOREGRAD_CONFIG_DIR", str(tmp_path / "elsewhere"))
    loaded = fg.load(tmp_path / "net.fg")
    for size in ((3, 5), (4, 7), (2, 9)):
        results = []
        for call in (loaded, net):
            torch.manual_seed(0)
            x, table = leaf(*size, 4), leaf(size[1], 3)
            out, _ = call({"x": x}, table)
            results.append([out, *torch.autograd.grad(out.square().sum(), (x, table))])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    with pytest.raises(fg.GuardError):
        loaded({"x": leaf(3, 1, 4)}, leaf(1, 3))


@pytest.mark.parametrize(
    "code", ["(4*dim0)", "(dim0 + -1*dim1)", "max(1, (dim0 // 2))", "((3*dim0*dim1) % 7)", "dim0**2"]
)
def test_the_text_of_a_size_is_computed_as_python_does(code):
    symbols = {"dim0": 9, "dim1": 4}
    assert computed(code, symbols) == eval(code, {}, symbols)


@pytest.mark.parametrize(
    "code", ["__import__('os')", "dim0.real", "dim2", "dim0 if 1 else 2", "2.5", "dim0 ** dim0", "("]
)
def test_the_text_of_a_size_is_no_other_python(code):
    with pytest.raises(fg.CorruptArtifact):
        computed(code, {"dim0": 9})

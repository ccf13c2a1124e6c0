"""Graphs compiled with Inductor: values to rounding, draws as eager's, regions, warnings, times."""

import copy
import logging
import warnings

import pytest
import torch
from torch import nn

import foregrad as fg
from benchmarks.models import ResidualStack
from foregrad.backends import choose, inductor
from foregrad.backends import compiling as compilers
from foregrad.backends.lower import lower
from foregrad.torch_private.inductor import inductor_decompositions

needs_compiler = pytest.mark.skipif(choose.compiler() is None, reason="there is no C++ compiler")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.norm, self.drop, self.down = (
            nn.Linear(8, 16),
            nn.BatchNorm1d(16),
            nn.Dropout(0.5),
            nn.Linear(16, 2),
        )

    def forward(self, x):
        return self.down(self.drop(torch.nn.functional.gelu(self.norm(self.up(x)))))


@pytest.fixture(scope="module")
def trained():
    """A net and its compiled twin after two steps from one seed."""
    torch.manual_seed(0)
    ours, theirs = Net(), Net()
    theirs.load_state_dict(ours.state_dict())
    compiled = fg.compile(ours, backend="inductor", progress=False)
    x = torch.randn(6, 8)
    for net in (compiled, theirs):
        torch.manual_seed(1)
        for _ in range(2):
            net.zero_grad()
            net(x).square().sum().backward()
    return compiled, theirs, x


@needs_compiler
def test_gradients_buffers_and_draws_are_those_of_eager(trained):
    compiled, theirs, _ = trained
    for (name, ours), reference in zip(compiled.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, reference.grad, msg=name)
    for (name, ours), reference in zip(compiled.named_buffers(), theirs.buffers(), strict=True):
        torch.testing.assert_close(ours, reference, msg=name)


@needs_compiler
def test_times_of_the_parts(trained):
    compiled, _, _ = trained
    timings = compiled.timings
    assert timings["record"] > 0
    assert 0 < timings["compile forward"] <= timings.seconds
    assert "compile backward" in str(timings)
    with pytest.raises(KeyError):
        timings["bake"]


@needs_compiler
def test_a_call_verifies_itself_and_leaves_nothing(trained):
    compiled, _, x = trained
    before, state = {k: v.clone() for k, v in compiled.state_dict().items()}, torch.get_rng_state()
    captures = compiled.captures
    report = compiled.verify(x)
    assert report.is_equal
    assert {d.half for d in report.differences} == {"forward", "backward"}
    assert {"write norm.running_mean", "grad up.weight"} <= {f"{d.role} {d.name}" for d in report.differences}
    assert all(torch.equal(before[k], v) for k, v in compiled.state_dict().items())
    assert torch.equal(state, torch.get_rng_state())
    assert compiled.captures is captures


@needs_compiler
def test_the_blocks_of_a_stack_are_compiled_once():
    torch.manual_seed(0)
    stack, x = ResidualStack(6, width=8), torch.randn(4, 8)
    compiled = fg.compile(stack, backend="inductor", progress=False)
    loss = compiled(x)
    torch.testing.assert_close(loss, stack(x))
    forward = compiled.regions[0]
    assert (forward.distinct[0].label, forward.distinct[0].count) == ("blocks.*", 6)
    assert "blocks.*" in str(forward)


@needs_compiler
def test_without_regions_a_half_is_compiled_as_a_whole():
    stack, x = ResidualStack(4, width=8), torch.randn(4, 8)
    compiled = fg.compile(stack, backend="inductor", regions="off", progress=False)
    torch.testing.assert_close(compiled(x), stack(x))
    assert [[(r.label, r.count) for r in half.distinct] for half in compiled.regions] == [[("whole", 1)]] * 2


def test_what_the_backend_got_wrong_is_named():
    def wrong(graph, name):
        run = choose.compile_graph(graph, name)
        return lambda *inputs: tuple(r * 1.01 if place == 0 else r for place, r in enumerate(run(*inputs)))

    def f(x, w):
        return (x @ w).relu()

    report = fg.compile(f, backend=wrong).verify(torch.randn(3, 3), torch.randn(3, 3, requires_grad=True))
    assert not report.is_equal
    assert "first op that differs: mm" in str(report)
    assert "test_inductor.py" in report.first_op


def test_what_cannot_be_compiled_runs_op_by_op(monkeypatch):
    def fails(*args, **kwargs):
        raise NotImplementedError("no such thing\nand more")

    monkeypatch.setattr(inductor, "lower", fails)
    monkeypatch.setattr(inductor, "prepare", lambda: None)
    compiled = fg.compile(lambda x: x.sin() + 1, backend=compilers.Inductor())
    with pytest.warns(fg.FallbackWarning, match="could not compile forward: NotImplementedError: no such thing"):
        result = compiled(torch.ones(2))
    assert torch.equal(result, torch.ones(2).sin() + 1)


def test_without_a_compiler_the_ops_run_one_by_one_and_it_is_said_once(monkeypatch):
    monkeypatch.setattr(choose, "compiler", lambda: None)
    choose._warn_no_compiler.cache_clear()
    with pytest.warns(UserWarning, match="no C\\+\\+ compiler"):
        assert choose.choose("inductor") is choose.compile_graph
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert choose.choose(None) is choose.compile_graph


@pytest.mark.parametrize(
    ("options", "says"),
    [({"backend": "fast"}, "no backend 'fast'"), ({"rng": "true"}, "rng is"), ({"regions": "all"}, "regions is")],
)
def test_options_that_do_not_exist(options, says):
    with pytest.raises(ValueError, match=says):
        fg.compile(torch.sin, **options)


def test_parts_are_log_lines_where_there_is_no_terminal(caplog):
    with caplog.at_level(logging.INFO, logger="foregrad"):
        fg.compile(torch.sin, backend="eager")(torch.ones(2))
        assert any("record took" in line for line in caplog.messages)
        caplog.clear()
        fg.compile(torch.sin, backend="eager", progress=False)(torch.ones(2))
    assert not caplog.messages


def test_a_name_of_the_module_comes_before_ours():
    class Own(nn.Module):
        verify = "mine"

        def forward(self, x):
            return x + 1

    compiled = fg.compile(Own(), backend="eager")
    assert compiled.verify == "mine"
    assert compiled.captures == ()
    with pytest.raises(AttributeError, match="nothing"):
        _ = compiled.nothing


@needs_compiler
def test_saved_tensors_that_hooks_give_another_layout():
    def f(x, w):
        return (x.t() @ w).sin()

    x, w = torch.randn(3, 2, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    expected = torch.autograd.grad(f(x, w).sum(), (x, w))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.detach(), lambda t: t.t().clone().t()):
        out = fg.compile(f, backend="inductor", progress=False)(x, w)
    torch.testing.assert_close(torch.autograd.grad(out.sum(), (x, w)), expected)


@needs_compiler
def test_fast_draws_are_inductors_own_and_backward_sees_the_same_mask():
    x = torch.ones(500, 100, requires_grad=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # nothing runs op by op
        f = fg.compile(lambda x: nn.functional.dropout(x, 0.3), backend="inductor", rng="fast", progress=False)
        torch.manual_seed(0)
        first, second = f(x), f(x)
    torch.manual_seed(0)
    assert not torch.equal(first, nn.functional.dropout(x, 0.3))
    assert not torch.equal(first, second)
    assert abs(float((first != 0).float().mean()) - 0.7) < 0.02
    (grad,) = torch.autograd.grad(first.sum(), x)
    assert torch.equal(grad, first.detach())


class OtherLayout(inductor.Fuser):
    """Inductor with a decomposition that gives another layout than its op does."""

    def lowered(self, graph):
        sine = {torch.ops.aten.sin.default: lambda x: torch.cos(x.t().contiguous() - torch.pi / 2).t()}
        return lower(graph, {**inductor_decompositions(), **sine})


def test_results_keep_the_layout_of_the_op_where_a_decomposition_gives_another():
    def f(x):
        y = x.sin()
        return y, y + 1

    x = torch.randn(3, 4)
    for got, wanted in zip(fg.compile(f, backend=OtherLayout())(x), f(x), strict=True):
        assert got.stride() == wanted.stride()
        torch.testing.assert_close(got, wanted)


def test_convolutions_and_their_gradients_are_those_of_eager():
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3), nn.Flatten())
    x = torch.randn(2, 3, 8, 8).requires_grad_()
    reference, target = copy.deepcopy(model), fg.compile(model, backend="inductor")
    results = []
    for run in (reference, target):
        y = run(x)
        results.append([y.detach(), *torch.autograd.grad(y.square().sum(), [x, *run.parameters()])])
    for got, wanted in zip(results[1], results[0], strict=True):
        assert got.stride() == wanted.stride()
        torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-5)


@needs_compiler
def test_random_ops_are_not_decomposed_into_others_that_draw_otherwise():
    """Inductor would draw 32-bit floats for the bernoulli of 64-bit ones, of which eager draws twice as many."""
    p = torch.rand(4, 4, dtype=torch.float64)
    ours = fg.compile(lambda p: torch.bernoulli(p) * p, backend="inductor", cache=False, progress=False)
    results = []
    for run in (ours, lambda p: torch.bernoulli(p) * p):
        torch.manual_seed(0)
        results.append((run(p), torch.get_rng_state()))
    assert all(map(torch.equal, *results))


@needs_compiler
def test_hooks_of_all_modules_do_not_keep_a_program_from_being_compiled():
    net, x, seen = Net().eval(), torch.randn(6, 8), []
    expected = net(x)
    handles = [
        nn.modules.module.register_module_forward_pre_hook(lambda module, args: seen.append(type(module).__name__)),
        nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 2),
    ]
    try:
        doubled = net(x)
        seen.clear()
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # nothing runs op by op
            out = fg.compile(net, backend="inductor", progress=False)(x)
            out.sum().backward()
    finally:
        for handle in handles:
            handle.remove()
    assert not torch.equal(doubled, expected)
    torch.testing.assert_close(out, doubled)
    assert set(seen) == {"Net", "Linear", "BatchNorm1d", "Dropout"}  # no module of a compiler's

"""Effects: ops that do more than compute run once, in order, in forward and in backward, as in eager."""

import pytest
import torch
from torch import fx, nn
from torch.library import EffectType, _register_effectful_op

import foregrad as fg
from foregrad.core.tokens import TOKEN_ROLES
from tests.compare import BACKEND, also_compiled, assert_same, compiled, grads_of, leaf, same_as_eager

aten = torch.ops.aten
LOG: list[object] = []


def _custom(name, function, **options):
    return torch.library.custom_op(f"effects::{name}", function, mutates_args=(), **options)


def _record(x: torch.Tensor, tag: int) -> torch.Tensor:
    LOG.append(tag)
    return x.clone()


def _mark(x: torch.Tensor) -> torch.Tensor:
    LOG.append("mark")
    return x.clone()


def _say(x: torch.Tensor, word: str) -> None:
    LOG.append((word, x.tolist()))


def _count() -> torch.Tensor:
    LOG.append("count")
    return torch.tensor(len(LOG))


record, mark, say, count, unfaked = (
    _custom("record", _record),
    _custom("mark", _mark),
    _custom("say", _say),
    _custom("count", _count),
    _custom("unfaked", _mark),
)
record.register_fake(lambda x, tag: torch.empty_like(x))
mark.register_fake(lambda x: torch.empty_like(x))
count.register_fake(lambda: torch.empty((), dtype=torch.int64))
record.register_autograd(
    lambda ctx, gradient: (torch.ops.effects.record(gradient, 100), None),
    setup_context=lambda ctx, inputs, output: None,
)
for effectful in ("record", "count", "unfaked"):
    _register_effectful_op(f"effects::{effectful}", EffectType.ORDERED)

note = torch.library.Library("effects2", "DEF")
note.define("note(str word) -> ()")
note.impl("note", LOG.append, "CompositeExplicitAutograd")


@pytest.fixture(autouse=True)
def marked():
    """`effects::mark` has a side effect, as FX is told."""
    LOG.clear()
    fx.node.has_side_effect(torch.ops.effects.mark.default)
    yield
    fx.node._side_effectful_functions.discard(torch.ops.effects.mark.default)


def told():
    words = list(LOG)
    LOG.clear()
    return words


# In forward and in backward


@also_compiled
@same_as_eager
def test_eff_1_effectful_ops_run_once_in_order(wrap):
    def f(x):
        record(x, 1)  # nobody uses what it gives
        return record(x * 2, 2) * 2

    f, x, words = wrap(f), leaf(2), []
    for _ in range(3):
        f(x).sum().backward()
        words.append(told())
    assert words == [[1, 2, 100]] * 3
    return grads_of(x)


@same_as_eager
def test_eff_2_what_an_effectful_op_gives_is_saved_for_backward(wrap):
    x = leaf(4)
    result = wrap(lambda x: record(x, 3).sin())(x)
    for _ in range(2):
        result.sum().backward(retain_graph=True)
    assert told() == [3, 100, 100]
    return grads_of(x)


def test_eff_3_backends_see_the_ops_alone():
    """No token is left, nor what makes or takes one."""
    seen = []

    def backend(graph, name):
        seen.append([str(n.target) for n in graph.graph.nodes if n.op != "output"])
        return graph.forward

    fg.compile(lambda x: record(record(x, 1), 2), backend=backend)(leaf(2)).sum().backward()
    op = "effects.record.default"
    assert seen[:2] == [["x", op, op], ["tangent_0", op, op]]
    assert told() == [1, 2, 100, 100]


@also_compiled
@same_as_eager
def test_ops_without_results(wrap):
    def f(x):
        say(x, "first")
        torch.ops.effects2.note("between")
        say(x * 2, "last")
        return x * 3

    f = wrap(f)
    results = [f(torch.ones(2)), f(torch.ones(2))]
    words = told()
    assert words == [("first", [1.0, 1.0]), "between", ("last", [2.0, 2.0])] * 2
    return results


def test_printing_ops_print_at_each_call(capfd):
    f = compiled(lambda x: (aten._print("one"), x * 2, aten._print("two"))[1])
    assert capfd.readouterr().out == ""
    for _ in range(2):
        f(torch.ones(2))
        assert capfd.readouterr().out.split() == ["one", "two"]


class Tells(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        say(gradient, "backward")
        record(gradient, 7)
        record(gradient, 7)
        return gradient * 2


@same_as_eager
def test_effects_of_backward(wrap):
    x = leaf(2)
    result = wrap(lambda x: Tells.apply(x) + record(x, 1))(x)
    words = [told()]
    result.sum().backward()
    words.append(told())
    return words, grads_of(x)


@same_as_eager
def test_effects_of_a_backward_that_is_differentiated(wrap):
    x = leaf(2)
    (gradient,) = torch.autograd.grad(wrap(lambda x: record(x.sin(), 1))(x).sum(), x, create_graph=True)
    gradient.sum().backward()
    return told(), grads_of(x)


@same_as_eager
def test_effects_of_a_backward_from_some_results(wrap):
    x, y = leaf(2), leaf(2)
    results = wrap(lambda x, y: (record(x, 1), record(y, 2)))(x, y)
    results[1].sum().backward()
    return told(), grads_of(x, y)


@also_compiled
def test_w9_a_check_is_never_dropped():
    def f(x):
        torch._assert_async((x > 5).all())
        torch._assert_async((x > 6).all(), "not above six")
        return x.sin()

    f = compiled(f)
    assert torch.allclose(f(torch.full((2,), 7.0)), torch.full((2,), 7.0).sin())
    with pytest.raises(RuntimeError, match="Expected Tensor with single nonzero value"):
        f(torch.full((2,), 1.0))
    with pytest.raises(RuntimeError, match="not above six"):
        f(torch.full((2,), 5.5))


@same_as_eager
def test_w10_an_op_with_a_side_effect_runs_once(wrap):
    x = leaf(2)
    wrap(lambda x: (mark(x.detach()), mark(x.detach()), x.sin())[2])(x).sum().backward()
    words = told()
    assert words == ["mark", "mark"]
    return grads_of(x)


def test_w10_capture_changes_nothing_of_torch():
    def marked():
        return {op for op in fx.node._side_effectful_functions if "effects." in str(op)}

    before, x = marked(), leaf(2)
    compiled(lambda x: (say(x, "x"), record(x, 1))[1] * 2)(x).sum().backward()
    assert marked() == before


def test_capture_runs_no_effect():
    fg.capture(lambda x: (say(x, "x"), record(x, 1), mark(x), x * 2)[3], leaf(2))
    fg.capture(lambda x: x * count(), torch.ones(2))
    assert told() == []


def test_a_value_of_an_effectful_op_is_not_known():
    with pytest.raises(fg.CaptureError, match="is needed in Python"):
        fg.capture(lambda x: x * count().item(), torch.ones(2))
    assert told() == []


def test_an_effectful_op_that_cannot_say_what_it_gives_is_refused():
    with pytest.raises(fg.CaptureError, match="register a fake kernel") as caught:
        fg.capture(lambda x: unfaked(x), torch.ones(2))
    assert "test_effects.py" in str(caught.value)
    assert told() == []


class Block(nn.Module):
    def __init__(self, place):
        super().__init__()
        self.linear, self.drop, self.place = nn.Linear(4, 4), nn.Dropout(0.5), place

    def forward(self, x):
        return x + self.drop(torch.relu(self.linear(record(x, self.place))))


@pytest.mark.parametrize("differs", [pytest.param(False, marks=also_compiled), True])
def test_a_stack_of_blocks_with_draws_and_effects_keeps_their_order(differs):
    """Blocks that are alike are one region, called many times."""
    stack = nn.Sequential(*(Block(place if differs else 0) for place in range(6)))
    assert_same(stack, lambda: (leaf(3, 4),), calls=2)
    words = told()
    assert words[: len(words) // 4] == words[len(words) // 4 : len(words) // 2]
    assert words[:6] == [place if differs else 0 for place in range(6)]


def test_a_training_step_with_effects():
    model = nn.Linear(2, 1)
    optimizer = torch.optim.Adam(model.parameters(), fused=True)

    def step(x):
        optimizer.zero_grad()
        loss = record(model(x), 1).sum()
        loss.backward()
        say(model.weight.grad[0, :1] * 0, "before the step")
        optimizer.step()
        record(x, 2)
        return loss

    call = fg.step(model, optimizer, backend=BACKEND)(step)
    for _ in range(3):
        call(torch.ones(3, 2))
        assert told() == [1, 100, ("before the step", [0.0]), 2]


# In the program


def test_tokens_are_inputs_and_outputs_with_roles():
    program = fg.capture(lambda x: (say(x, "x"), record(x, 1))[1], leaf(2))
    assert [str(i) for i in program.signature.inputs_of(*TOKEN_ROLES)] == [
        "token ordered: token",
        "token in backward ordered: token",
    ]
    assert [o.role for o in program.signature.outputs] == ["output", "grad", "token", "token in backward"]
    assert "token_ordered_2 = after(token_ordered_1, record)" in str(program)
    program.verify()
    program.graph.graph.eliminate_dead_code()
    assert "effects.say" in str(program)


def test_a_pass_that_drops_or_repeats_an_effect_is_refused():
    def drops(program):
        (said,) = [n for n in program.graph.graph.nodes if n.target is torch.ops.effects.say.default]
        (link,) = said.users
        link.replace_all_uses_with(link.args[0])
        program.graph.graph.erase_node(link)
        return program.with_graph(program.graph)

    with pytest.raises(fg.ProgramError, match="no chain of role 'token' holds it"):
        compiled(lambda x: (say(x, "x"), record(x, 1))[1], passes=[drops])(torch.ones(2))


def test_an_effect_is_not_run_to_compare():
    with pytest.raises(fg.CaptureError, match="several times"):
        compiled(lambda x: record(x, 1)).verify(torch.ones(2))
    assert told() == []

"""The eager backend: values die after their last use, any name works, tracebacks show the source."""

import traceback
import weakref

import pytest
import torch
from torch import fx

import foregrad as fg
from foregrad.backends.eager import compile_graph, fast_function, graph_source
from tests.compare import assert_same, compiled, leaf

aten = torch.ops.aten


class Watched:
    """Ops that note which of the values before them are still alive."""

    def __init__(self):
        self.alive = []
        self._made = []

    def step(self, *values):
        self.alive.append([made() is not None for made in self._made])
        result = sum(values) + 1
        self._made.append(weakref.ref(result))
        return result


def chain(step):
    """`a = step(x); b = step(a); c = step(a, b); d = step(c)`, and `unused = step(x)` on the way."""
    graph = fx.Graph()
    x = graph.placeholder("x")
    a = graph.call_function(step, (x,), name="a")
    b = graph.call_function(step, (a,), name="b")
    graph.call_function(step, (x,), name="unused")
    c = graph.call_function(step, (a, b), name="c")
    graph.output((graph.call_function(step, (c,), name="d"),))
    return fx.GraphModule({}, graph)


def test_a_value_dies_after_its_last_use():
    watched = Watched()

    def step(*values):
        return watched.step(*values)

    (result,) = compile_graph(chain(step), "forward")(torch.zeros(2))
    assert result.tolist() == [5.0, 5.0]
    assert watched.alive == [
        [],
        [True],  # a
        [True, True],  # a, b
        [True, True, False],  # a, b; what nothing uses is gone at once
        [False, False, False, True],  # only c
    ]


def test_the_source_says_when_values_die():
    source, _ = graph_source(chain(lambda *values: sum(values)), "forward")
    assert "; del a, b" in source or "; del b, a" in source
    assert "unused" in source.split("; del unused")[0]


#: Names that Python, torch or generated code use for something else.
NAMES = """
    class lambda None print len type float inf nan str tuple list dict slice self
    k args kwargs o0 o1 r0 a1 c0 v0 s0 d0 g_o0 ctx rest live saved results version
    MISS call run forward backward forward_half rare op aten torch constant
    aten_mul_Tensor mul mul_1 sin tangent_0 owner m state_is_same exclude_keys below
"""


@pytest.mark.parametrize("name", NAMES.split())
def test_an_input_may_have_any_name(name):
    def f(**tensors):
        x, w = tensors.values()
        return (x * w).sin() * 0.5 + torch.tensor([1.0, 2.0]), x.detach().float()

    assert_same(f, lambda: (), kwargs=lambda: {name: leaf(2), "other": leaf(2)}, calls=2)


@pytest.mark.parametrize("name", ["class", "k", "o0", "mul", "1", "a b", "a.b", "ü", ""])
def test_a_tensor_in_a_dict_may_have_any_key(name):
    assert_same(lambda tensors: tensors[name] * 2, lambda: ({name: leaf(2)},), calls=2)


def test_names_that_become_one_are_kept_apart():
    def f(tensors):
        return tensors["a.b"] * 2 + tensors["a_b"] * 3 + tensors["a b"]

    program = fg.capture(f, {"a.b": leaf(2), "a_b": leaf(2), "a b": leaf(2)})
    names = [n.name for n in program.graph.graph.nodes if n.op == "placeholder"]
    assert len(set(names)) == len(names)
    assert_same(f, lambda: ({"a.b": leaf(2), "a_b": leaf(2), "a b": leaf(2)},))


def test_a_traceback_shows_the_generated_source():
    generator = torch.Generator()  # of the user's: what it has drawn is not drawn again by the function itself
    f = compiled(lambda x, i: (x.sin() + torch.rand(3, generator=generator))[i] * 2)
    f(torch.ones(3), torch.tensor([0]))
    with pytest.raises(IndexError) as caught:
        f(torch.ones(3), torch.tensor([9]))
    text = "".join(traceback.format_exception(caught.value))
    assert "<foregrad forward" in text
    assert "index = aten_index_Tensor(add, [i" in text


@pytest.mark.parametrize("op", [aten.add.Tensor, aten.mul.Tensor, aten.sin.default, aten.mm.default])
def test_a_faster_function_reaches_the_same_op(op):
    tensor = ("tensor", 2, torch.float32)
    pattern = ((tensor,) * len([a for a in op._schema.arguments if str(a.type) == "Tensor"]), ())
    assert fast_function(op, pattern) is not None


def test_a_random_op_is_called_as_itself():
    assert fast_function(aten.bernoulli.default, ((("tensor", 1, torch.float32),), ())) is None

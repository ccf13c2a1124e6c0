"""Values that were written into a part of a tensor: which are dense, which are not, and that they are the same."""

import torch
from torch import nn

import foregrad as fg
from foregrad.passes.dense_writes import without_gaps

aten = torch.ops.aten


def gates(x):
    """Two gates, computed in place as a recurrent cell does."""
    first, second = (x * 2).chunk(2, 1)
    return first.sigmoid_(), second.tanh_()


def dense(program):
    """The program after the pass, which gives the same values, and how many values with gaps it had and has."""
    made = without_gaps(program)
    inputs = [torch.randn(i.spec.shape, dtype=i.spec.dtype) for i in program.signature.inputs]
    with torch.no_grad():
        before, after = (one.graph(*inputs) for one in (program, made))
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0)
        assert one.stride() == other.stride()
    made.verify()
    return made, num_gaps(program), num_gaps(made)


def num_gaps(program):
    nodes = [node for node in program.graph.graph.nodes if node.target is aten.copy.default]
    return sum(not node.meta["spec"].is_dense for node in nodes)


def test_the_gates_of_a_cell_are_dense_and_so_is_what_backward_reads():
    torch.manual_seed(0)
    cell = nn.LSTMCell(4, 6)
    program = fg.capture(
        lambda x, h, c: sum(one.sum() for one in cell(x, (h, c))), *map(torch.randn, [(3, 4), (3, 6), (3, 6)])
    )
    made, before, after = dense(program)
    assert (before, after) == (4, 0)
    seen = [node.meta["spec"] for node in made.graph.graph.nodes if node.target is aten.detach.default]
    assert seen
    assert all(spec.is_dense for spec in seen)


def test_what_is_more_than_its_elements_keeps_its_strides():
    x = torch.randn(3, 8)
    for function, kept in [
        (lambda x: gates(x)[0] * gates(x)[1], 0),
        (lambda x: gates(x), 2),  # the caller sees them
        (lambda x: gates(x)[0].t() * 2, 1),  # a view of it would have other strides
        (lambda x: gates(x)[0] @ gates(x)[1].t(), 2),
        (lambda x: (x.t() * 2)[:4].sigmoid_() * 2, 1),  # another order of dimensions
    ]:
        assert dense(fg.capture(function, x))[2] == kept


def test_a_value_of_another_dtype_or_shape_is_left():
    def cast(x):
        part = (x * 2)[:, :3]
        part.copy_(x[0, :3].double())
        return part * 2

    _, before, after = dense(fg.capture(cast, torch.randn(3, 8)))
    assert before == after == 1

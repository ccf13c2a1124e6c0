"""Ops that write to lists of tensors (`torch._foreach_add_`): values and version counters are eager's."""

import pytest
import torch

from tests.compare import compiled

NAMES = [n for n in dir(torch) if n.startswith("_foreach_") and n.endswith("_")]


def others():
    """What such an op may take besides the tensors that it writes."""
    tensors = [torch.ones(2), torch.full((2,), 3.0)]
    yield from ([], [1.5], [[1.5, 2.5]], [torch.tensor(2.0)], [tensors], [tensors, 0.5], [tensors, [0.5, 0.25]])
    yield from ([tensors, tensors], [tensors, tensors, 0.5], [tensors, tensors, [0.1, 0.2]])


def calls(name):
    for other in others():
        try:
            getattr(torch, name)([torch.full((2,), 2.0), torch.full((2,), 0.5)], *other)
        except (TypeError, RuntimeError):
            continue
        yield other


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("needs_gradient", [False, True])
def test_each_counts_its_writes(name, needs_gradient):
    assert list(calls(name))
    for other in calls(name):

        def writes(tensors, other=other):
            getattr(torch, name)(tensors, *other)

        found = []
        for f in (writes, compiled(writes)):
            leaf = torch.ones(2, requires_grad=needs_gradient)
            tensors = [leaf * 2.0, leaf * 0.5]
            f(tensors)
            found.append([(t.detach().tolist(), t._version, t.requires_grad) for t in tensors])
        assert repr(found[0]) == repr(found[1])


def test_a_backward_notices():
    w = torch.ones(2, requires_grad=True)
    a = [torch.full((2,), 3.0), torch.zeros(2)]
    y = (w * a[0]).sum()
    compiled(lambda a: torch._foreach_mul_(a, 2.0))(a)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.backward()

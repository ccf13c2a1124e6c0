"""Arguments that are slices of one tensor, of which some overlap and some do not: writes to any of them arrive."""

import random

import pytest
import torch

import foregrad as fg
from tests.compare import also_compiled, assert_refused, compiled, same_as_eager

MAKES = {
    "plain": lambda: torch.arange(8.0),
    "leaf": lambda: torch.arange(8.0).requires_grad_(),
    "with a history": lambda: torch.arange(8.0).requires_grad_() + 0,
}
WRITES = {
    "in place": lambda x: x.mul_(2),
    "under no_grad": torch.no_grad()(lambda x: x.add_(1)),
    "through .data": lambda x: x.data.neg_(),
    "through detach()": lambda x: x.detach().sub_(3),
}


def outcome(function, make, slices):
    """What the function did to the tensor, and what it returned."""
    whole = make()
    try:
        result = function(*(whole[part] for part in slices))
    except fg.CaptureError:
        raise
    except RuntimeError as error:
        return str(error)[:20]
    return whole.detach().clone(), result.detach().clone()


def assert_same_writes(seed, wrap):
    chosen = random.Random(seed)
    make = chosen.choice(list(MAKES.values()))
    slices = [slice(start := chosen.randrange(7), chosen.randint(start + 1, 8)) for _ in range(chosen.randint(2, 4))]
    writes = [
        (chosen.randrange(len(slices)), chosen.choice(list(WRITES.values()))) for _ in range(chosen.randint(1, 3))
    ]

    def f(*parts):
        before = parts[0] * 2
        for place, write in writes:
            write(parts[place])
        return before.sum() + parts[-1].sum()

    expected, actual = outcome(f, make, slices), outcome(wrap(f), make, slices)
    assert str(expected) == str(actual), (slices, writes)


@pytest.mark.parametrize("seed", range(150))
def test_random_slices_and_writes(seed):
    """A write to a slice that overlaps no other was lost, where others overlap: they took the whole tensor along."""
    try:
        assert_same_writes(seed, lambda f: fg.compile(f, backend="eager", cache=False))
    except fg.CaptureError as error:
        pytest.skip(f"refused: {str(error).splitlines()[0]}")


@also_compiled
@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES.keys())
def test_two_slices_that_overlap_and_one_beside(make):
    def f(x, y, z):
        with torch.no_grad():
            x.mul_(2)
            z.add_(1)
        return y * 2

    slices = slice(0, 2), slice(1, 3), slice(5, 6)
    assert str(outcome(f, make, slices)) == str(outcome(compiled(f), make, slices))


def test_a_later_call_with_slices_of_other_tensors_is_captured_anew():
    def f(x, y, z):
        x.mul_(2)
        z.add_(1)
        return y * 2

    function = fg.compile(f, backend="eager", cache=False)
    for _ in range(2):
        one, other = torch.arange(8.0), torch.arange(8.0)
        function(one[0:2], one[1:3], one[5:6])
        assert one.tolist() == [0, 2, 2, 3, 4, 6, 6, 7]
        one = torch.arange(8.0)
        function(one[0:2], one[1:3], other[5:6])
        assert (one.tolist(), other.tolist()) == ([0, 2, 2, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 6, 6, 7])


@pytest.mark.parametrize("is_swapped", [True, False])
def test_a_tensor_of_the_closure_of_which_two_arguments_are_parts_is_refused(is_swapped):
    """With the later part first, the write to the other was lost."""
    whole = torch.arange(4.0)
    parts = whole[:2], whole[2:]

    def f(x, y):
        x.mul_(2)
        y.mul_(3)
        whole.add_(1)
        return whole * 1

    assert_refused(f, parts[::-1] if is_swapped else parts, at="whole.add_(1)")


RETURNED = {
    "a product and a view": lambda a, b: (a * a, b.unsqueeze(0)),
    "a product and the other": lambda a, b: (a * 3, b),
    "products": lambda a, b: (a * a, b * 2),
    "a product and a view of the same": lambda a, b: (a * 3, a.view(3, 3)),
}
ASKED = {"both": "ab", "one": "a", "the other": "b", "one and what it is made of": "aw", "all": "abw", "the leaf": "l"}


@pytest.mark.parametrize("asked", ASKED.values(), ids=ASKED)
@pytest.mark.parametrize("returned", RETURNED.values(), ids=RETURNED)
@pytest.mark.parametrize("written", ["a", "b", "both"])
@same_as_eager
def test_views_keep_their_gradients_after_a_write_that_autograd_does_not_count(wrap, written, returned, asked):
    """A gradient of the view itself was that of some results only: what others sent arrived at its base."""
    leaf = torch.arange(9.0).view(3, 3).requires_grad_()
    whole = leaf + 0
    a = whole.view(-1)
    b = a[0]

    def f(a, b):
        for one in {"a": (a,), "b": (b,), "both": (a, b)}[written]:
            one.data.mul_(2)
        return returned(a, b)

    results = wrap(f)(a, b)
    of = [{"a": a, "b": b, "w": whole, "l": leaf}[name] for name in asked]
    gradients = torch.autograd.grad(results, of, [torch.ones_like(t) for t in results], allow_unused=True)
    return [None if one is None else one.tolist() for one in gradients]  # their version counters are the engine's

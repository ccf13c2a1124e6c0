"""Which sizes vary, and within which bounds: what is said by `dynamic=`, by marks on tensors, and what is found out."""

import subprocess
import sys

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.compare import leaf, only_with_eager

pytestmark = only_with_eager("it names its backends itself")


def compiled(function, dynamic, **options):
    return fg.compile(function, **{"backend": "eager", "cache": False} | options, dynamic=dynamic)


def explained(function):
    return str(fg.explain(function))


def num_captures(function):
    return len(fg.explain(function).captures)


# Bounds and multiples


def double(x):
    return x * x.shape[0]


def assert_doubles(f, *lengths):
    for length in lengths:
        x = torch.randn(length, 3)
        assert torch.equal(f(x), double(x))


def test_bounds_are_conditions_of_the_program():
    f = compiled(double, {"x": {0: (1, 8)}})
    assert_doubles(f, 3, 5, 8, 2)
    assert num_captures(f) == 1
    assert "as long as x.shape[0] <= 8 (as dynamic= or a mark says)" in explained(f)
    assert_doubles(f, 9, 9, 1, 4)
    assert num_captures(f) == 3  # 9 and 1 by themselves


def test_a_lower_bound():
    f = compiled(double, {"x": {0: (4, None)}})
    assert_doubles(f, 4, 100, 3, 7)
    assert num_captures(f) == 2
    assert "as long as 4 <= x.shape[0]" in explained(f)


def test_what_is_known_of_bounds_is_no_condition():
    f = compiled(lambda x: x * 2 if x.shape[0] <= 100 else x, {"x": {0: (2, 64)}})
    f(torch.ones(3))
    assert f(torch.ones(64)).sum() == 128
    assert "100" not in explained(f)


def test_multiples():
    f = compiled(lambda x: x.view(x.shape[0] // 8, 8).sum(1), {"x": {0: 8}})
    for length in (16, 40, 24):
        x = torch.randn(length)
        assert torch.equal(f(x), x.view(-1, 8).sum(1))
    assert num_captures(f) == 1
    assert "x.shape[0] % 8" in explained(f)


def test_a_size_that_is_no_multiple_has_a_program_of_its_own():
    f = compiled(double, {"x": {0: 8}})
    assert_doubles(f, 16, 12, 24, 12)
    assert num_captures(f) == 2


@pytest.mark.parametrize("said", [(4, 2), "8", (1, 2, 3), -8, (None, 4)])
def test_bounds_that_cannot_be_meant(said):
    with pytest.raises(TypeError, match="within"):
        compiled(double, {"x": {0: said}})


# Marks


def marked(x, **marks):
    for name, value in marks.items():
        setattr(x, name, value)
    return x


def test_marks_are_read_without_what_has_made_them():
    program = """
import sys, torch, foregrad as fg, foregrad.torch_private.marks

class Range:
    dim, min, max = 0, 2, 64

f = fg.compile(lambda x: x * x.shape[0], backend="eager", cache=False)
x = torch.ones(4, 3)
x._dynamo_dynamic_indices, x._dynamo_dynamic_range = {0}, {Range()}
assert fg.torch_private.marks.marks_of(x).varying == ((0, 2, 64),)
assert "torch._dynamo" not in sys.modules
f(x)
for length in (5, 6):
    assert f(torch.ones(length, 3)).sum() == length * length * 3
assert len(f.captures) == 1, fg.explain(f)
assert "x.shape[0] <= 64" in str(fg.explain(f))
"""
    subprocess.run([sys.executable, "-W", "error", "-c", program], check=True)


def test_torchs_own_marks():
    x = torch.ones(4, 3)
    torch._dynamo.mark_dynamic(x, 0, min=2, max=64)
    f = compiled(double, None)
    f(x)
    assert_doubles(f, 5, 64)
    assert num_captures(f) == 1
    assert_doubles(f, 65)
    assert num_captures(f) == 2


def test_marks_that_may_be_ignored_and_marks_of_what_is_static():
    x = torch.ones(4, 3)
    torch._dynamo.maybe_mark_dynamic(x, 0)
    f = compiled(double, None)
    f(x)
    assert_doubles(f, 6)
    assert num_captures(f) == 1
    f = compiled(lambda x, y: x + y.sum(), None)
    for length in (3, 4, 5):
        y = torch.ones(length)
        torch._dynamo.mark_static(y)
        f(torch.ones(2), y)
    assert num_captures(f) == 3


def test_a_marked_tensor_can_be_kept(tmp_path):
    for _ in range(2):
        f = compiled(double, None, cache=tmp_path)
        for length in (3, 5):
            x = torch.ones(length, 3)
            torch._dynamo.mark_dynamic(x, 0)
            assert torch.equal(f(x), double(x))
    assert [one.origin.how for one in f.captures] == ["found without tracing"], explained(f)


# Sizes that are always equal


def test_sizes_that_were_always_equal_are_one_symbol_and_guarded():
    f = compiled(lambda tokens, labels: (tokens * 2, labels * 3), None)
    for length in (4, 6, 9):
        f(torch.ones(2, length), torch.ones(2, length))
    assert num_captures(f) == 2
    assert "as it was in all calls that were captured" in explained(f)
    assert str(f.captures[1].program.signature.inputs[1].spec) in ("f32[2, tokens.1]", "f32[2, labels.1]")
    tokens, labels = f(torch.ones(2, 5), torch.ones(2, 8))
    assert (tokens.shape, labels.shape) == ((2, 5), (2, 8))
    assert num_captures(f) == 3
    f(torch.ones(2, 11), torch.ones(2, 7))
    assert num_captures(f) == 3


# Few sizes


def test_the_program_of_the_first_size_stays_for_it():
    """The last batch of an epoch is smaller: full batches go on with the program that has their size."""
    f = compiled(double, None)
    assert_doubles(f, 32, 32, 7)
    fixed, varying = f.captures
    assert f._calls == (fixed.call, varying.call)
    assert_doubles(f, 32, 7, 9)
    assert num_captures(f) == 2


# Parameters


class LowRank(nn.Module):
    def __init__(self, rank):
        super().__init__()
        self.down, self.up = nn.Parameter(torch.randn(4, rank)), nn.Parameter(torch.randn(rank, 4))

    def forward(self, x):
        return x @ self.down @ self.up


def test_parameters_of_another_size_are_named_as_the_reason():
    module = LowRank(2)
    f = compiled(module, None)
    x = leaf(3, 4)
    f(x)
    other = LowRank(3)
    module.down, module.up = other.down, other.up
    assert torch.equal(f(x), x @ other.down @ other.up)
    assert f.captures[1].conditions is None
    assert "down was f32[4, 2]" in f.captures[1].reason

"""Regions: few of them for a stack of any depth, and stitched together they are the program, bitwise."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg
from benchmarks.models import GPT, MLP, ConvBlock, ResidualStack, ResNet, UnrolledLSTM
from foregrad.passes.donation import donate
from foregrad.regions.regions import find_regions, region_notes
from tests.compare import assert_same, leaf
from tests.counting import num_calls


def summary(regions):
    return [(region.label, region.count) for region in regions.distinct]


def num_nodes(regions):
    return [sum(n.op == "call_function" for n in region.graph.graph.nodes) for region in regions.distinct]


def regions_of(target, *args):
    program = fg.capture(target, *args)
    return find_regions(program.forward), find_regions(program.backward)


def test_a_stack_has_one_region_for_its_blocks(found):
    assert_same(ResidualStack(25, 16), lambda: (leaf(4, 16),), calls=2)
    assert_same(ResidualStack(25, 16), lambda: (torch.randn(4, 16),), calls=2)
    assert [summary(regions) for regions in found] == [
        [("blocks.*", 25), ("rest", 1)],
        [("rest", 1), ("blocks.*", 25)],
        [("blocks.*", 25), ("rest", 1)],
        [("rest", 1), ("blocks.*", 24), ("blocks.0", 1)],
    ]


def test_depth_changes_the_calls_and_not_the_regions():
    shallow, deep = (regions_of(ResidualStack(depth, 16), torch.randn(4, 16)) for depth in (25, 50))
    for few, many in zip(shallow, deep, strict=True):
        assert num_nodes(few) == num_nodes(many)
        assert len(many.calls) - len(few.calls) == 25


def test_the_work_grows_with_the_depth_and_no_faster():
    def work(depth):
        program = fg.capture(ResidualStack(depth, 16), torch.randn(4, 16))
        return num_calls(lambda: [find_regions(half) for half in (program.forward, program.backward)])

    work(25)  # what is imported and looked up once
    assert work(200) < 4.4 * work(50)


def test_a_transformer(found):
    model = GPT(layers=6, width=16, heads=2, vocabulary=32, length=8)
    assert_same(model, lambda: (torch.randint(0, 32, (2, 8)), torch.randint(0, 32, (2, 8))), calls=2)
    assert [summary(regions) for regions in found] == [[("rest", 1), ("blocks.*", 6), ("rest", 1)]] * 2


def test_a_cell_unrolled_in_time(found):
    assert_same(UnrolledLSTM(8), lambda: (torch.randn(20, 3, 8),), calls=2)
    forward, backward = found
    assert max(region.count for region in forward.distinct) >= 18
    assert max(region.count for region in backward.distinct) >= 17
    assert max(len(forward.distinct), len(backward.distinct)) <= 4


def test_the_steps_of_an_input_are_made_before_the_loop(found):
    def f(x, w):
        h = x[0]
        for i in range(12):
            h = torch.tanh(F.layer_norm(h @ w + x[i], (4,)) * 0.5 + h.sin() * h.cos()) + 1
        return h

    with torch.no_grad():
        assert_same(f, lambda: (torch.randn(12, 4), torch.randn(4, 4)), backward=False)
    (regions,) = found
    assert max(region.count for region in regions.distinct) >= 11


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_convolutions_with_batch_norm(found, mode):
    model = nn.Sequential(*(ConvBlock(4, 4, 1) for _ in range(5))).train(mode == "train")
    assert_same(model, lambda: (leaf(2, 4, 6, 6),), calls=2)
    assert all(len(regions.distinct) <= 4 and len(regions.calls) >= 5 for regions in found)


def test_a_resnet(found):
    assert_same(ResNet(4), lambda: (torch.randn(2, 3, 8, 8), torch.randint(0, 10, (2,))), calls=2)


def test_draws_stay_in_their_order(found):
    def f(x):
        for _ in range(10):
            x = F.dropout(F.gelu(F.layer_norm(F.dropout(x, 0.3).sin(), (8,))).cos() * 2, 0.1) + x
        return x + torch.rand(8)

    assert_same(f, lambda: (leaf(4, 8),), calls=2)
    assert all(max(region.count for region in regions.distinct) >= 8 for regions in found)


def test_nothing_repeats(found):
    assert_same(MLP(), lambda: (torch.randn(4, 64), torch.randint(0, 10, (4,))), calls=2)
    assert [summary(regions) for regions in found] == [[("whole", 1)]] * 2


def test_a_program_without_ops(found):
    assert_same(lambda x, y: (x, y), lambda: (leaf(2), torch.ones(2)), calls=2)
    assert all(not regions.calls for regions in found)


def blocks(*changes):
    def f(x, w):
        for change in changes:
            x = torch.tanh(F.layer_norm(x @ w, (8,), eps=change) + x.sin()).exp().cos() * 0.5 + change
        return x

    return f


@pytest.mark.parametrize("other", [1e-5 * (1 + 1e-15), 2e-5])
def test_blocks_that_differ_by_a_constant_are_two_regions(found, other):
    assert_same(blocks(*[1e-5] * 6, *[other] * 6), lambda: (leaf(4, 8), leaf(8, 8)))
    assert sum(region.count > 3 for region in found[0].distinct) == 2


def test_numbers_that_are_equal_but_not_the_same_are_kept_apart(found):
    def f(x):
        for i in range(8):
            x = (x.sin().cos().exp().sin().cos().tanh().sin().exp() * (0.0 if i < 4 else -0.0)).cos() + (
                1 if i < 6 else 1.0
            )
        return x

    assert_same(f, lambda: (leaf(3),))
    assert_same(f, lambda: (torch.ones(3, dtype=torch.int64),))


def test_an_input_that_stands_twice_is_one_input(found):
    def f(x, *weights):
        for a, b in zip(weights, [*weights[:4], *weights[:4]], strict=True):
            x = ((x @ a).sin() * (x @ b).cos()).tanh().exp().sin() * 0.1 + x
        return x

    assert_same(f, lambda: (leaf(2, 3), *(leaf(3, 3) for _ in range(8))))
    same, other = [r for r in found[0].distinct if r.count > 1]
    sizes = [sum(n.op == "placeholder" for n in region.graph.graph.nodes) for region in (same, other)]
    assert sizes == [2, 3]


def test_constants_are_inputs_of_regions(found):
    def f(x):
        for i in range(8):
            x = (x.sin().cos().exp().sin().cos().tanh() * torch.tensor([float(i), 2.0])).sin() + x
        return x

    assert_same(f, lambda: (leaf(2),), calls=2)
    assert all(max(region.count for region in regions.distinct) >= 6 for regions in found)


def test_views_are_made_where_they_are_read():
    """A region takes and gives no transposed weight: its inputs are those of the program, or values of other ops."""
    for regions in regions_of(ResidualStack(8, 16), torch.randn(4, 16)):
        names = {name for call in regions.calls for name in (*call.inputs, *call.outputs)}
        assert not [name for name in names if name == "t" or name.startswith("t_")]


def test_results_that_are_views_are_given(found):
    def f(x, w):
        seen = []
        for _ in range(8):
            x = (x @ w).sin().cos().exp().sin().cos().tanh() + x
            seen.append(x.t())
        return x, seen, x.view(-1), w.t()

    with torch.no_grad():
        assert_same(f, lambda: (torch.randn(4, 4), torch.randn(4, 4)), calls=2, backward=False)
    assert max(region.count for region in found[0].distinct) >= 7


def test_two_stacks_share_a_region(found):
    def block(x, w):
        return (x @ w).sin().cos().exp().sin().cos().tanh().exp() * 0.1 + x

    def f(x, w, v):
        for _ in range(5):
            x = block(x, w)
        x = x.cumsum(0).softmax(0)
        for _ in range(6):
            x = block(x, v)
        return x

    with torch.no_grad():
        assert_same(f, lambda: (torch.randn(4, 4), torch.randn(4, 4), torch.randn(4, 4)), backward=False)
    assert summary(found[0]) == [("repeat", 11), ("rest", 1)]


def test_writes_in_regions_are_not_in_the_listing():
    model = ResidualStack(25, 16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def train(x):
        optimizer.zero_grad()
        loss = model(x)
        loss.backward()
        optimizer.step()
        return loss.detach()

    program = fg.capture(train, torch.randn(4, 16), state=(model, optimizer))
    regions = find_regions(donate(program).graph)
    notes = region_notes(program.graph.graph, [regions])
    written = {name for call in regions.calls for name in call.nodes} - {n.name for n in program.graph.graph.nodes}
    assert written
    assert notes
    assert not written & notes.keys()


def test_regions_print_as_a_table():
    forward, _ = regions_of(ResidualStack(8, 16), torch.randn(4, 16))
    assert str(forward) == (
        "region  label     nodes  calls\n"
        "     0  blocks.*     10      8\n"
        "     1  rest          2      1"
    )  # fmt: skip

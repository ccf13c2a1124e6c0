"""Channels last: the layout of images inside a program, which nobody outside of it sees."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import foregrad as fg
from foregrad.backends.toolchain import compiler
from foregrad.passes.channels_last import channels_last


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.head = nn.Linear(4 * 4 * 4, 5)

    def forward(self, x):
        y = F.relu(self.norm(self.one(x)))
        y = F.max_pool2d(y + self.two(y), 2)
        return y, self.head(y.flatten(1)).sum()


def captured():
    torch.manual_seed(0)
    return fg.capture(Net().double(), torch.randn(2, 3, 8, 8, dtype=torch.float64).requires_grad_())


def is_channels_last(spec):
    return spec.stride == torch.empty(spec.shape).contiguous(memory_format=torch.channels_last).stride()


def test_forward_and_backward_agree_on_channels_last():
    program = channels_last(captured())
    program.verify()
    images = [s for s in program.halves.saved if s.source == "value" and len(s.spec.shape) == 4]
    assert len(images) >= 4
    assert all(is_channels_last(s.spec) for s in images)


def test_the_caller_sees_the_layouts_that_were_captured():
    before = captured()
    after = channels_last(before)
    kept = [(a.meta["spec"], b.meta["spec"]) for a, b in zip(*map(results, (before, after)), strict=True)]
    assert all(a == b for a, b in kept)


def results(program):
    return [r for r in program.graph.graph.output_node().args[0] if r is not None]


def test_the_values_are_the_same():
    before = captured()
    after = channels_last(before)
    specs = [i.spec for i in before.signature.inputs]
    values = [
        torch.rand(s.shape, dtype=s.dtype) if s.dtype.is_floating_point else torch.zeros(s.shape, dtype=s.dtype)
        for s in specs
    ]
    for old, new in zip(before(*values), after(*values), strict=True):
        torch.testing.assert_close(new, old)


def test_a_weight_is_not_kept_in_a_second_layout():
    program = channels_last(captured())
    assert sum("weight" in s.name for s in program.halves.saved) == sum(
        "weight" in s.name for s in captured().halves.saved
    )
    assert not [s for s in program.halves.saved if "clone" in s.name and s.spec.shape in ((4, 3, 3, 3), (4, 4, 3, 3))]


def test_a_program_without_convolutions_is_left_alone():
    program = fg.capture(lambda x: x.sin(), torch.randn(2, 3, 4, 5))
    assert channels_last(program) is program


def steps(kind, passes):
    torch.manual_seed(0)
    net, inputs = Net().double(), torch.randn(3, 2, 3, 8, 8, dtype=torch.float64)
    optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.01)

    def step(x):
        optimizer.zero_grad()
        loss = net(x)[1]
        loss.backward()
        optimizer.step()
        return loss.detach()

    stepped = fg.step(net, optimizer, backend="eager", passes=passes)(step)
    losses = [stepped(x) for x in inputs]
    values = [*losses, *net.state_dict().values(), *(p.grad for p in net.parameters())]
    return stepped.captures[-1].program, values


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "RMSprop"])
def test_weights_and_the_state_of_an_optimizer_keep_their_layout_in_a_step(kind):
    (_, expected), (program, values) = steps(kind, ()), steps(kind, (channels_last,))
    torch.testing.assert_close(values, expected)
    assert [value.stride() for value in values] == [value.stride() for value in expected]
    given = [n for n in program.graph.graph.nodes if n.op == "placeholder" and n.meta["role"] == "state"]
    clones = {n.args[0] for n in program.graph.graph.nodes if n.target is torch.ops.aten.clone.default}
    assert not clones & set(given)


@pytest.mark.skipif(compiler() is None, reason="there is no C++ compiler")
def test_an_optimizer_with_numbers_updates_the_weights():
    def trained(compile_step):
        torch.manual_seed(0)
        model, x = nn.Conv2d(3, 4, 3, padding=1), torch.randn(2, 3, 8, 8)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, foreach=False)

        def step():
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

        run = compile_step(model, optimizer)(step)
        for _ in range(3):
            run()
        return list(model.parameters())

    found = trained(lambda *state: fg.step(*state, backend="inductor", progress=False))
    torch.testing.assert_close(found, trained(lambda *state: lambda step: step))

"""Inputs that get their new contents early: what moves, what stays, and that the same comes out."""

import copy

import pytest
import torch
from torch import nn

import foregrad as fg
from foregrad.passes.early_updates import early_updates

aten = torch.ops.aten


def model():
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))


def step_of(net, optimizer, clip=False):
    def step(x):
        optimizer.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        if clip:
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    return step


def names(program):
    return [node.name for node in program.graph.graph.nodes]


def num_before_the_last_product(program):
    ops = [node.target for node in program.graph.graph.nodes]
    last = max(place for place, op in enumerate(ops) if op is aten.mm.default)
    return ops[:last].count(aten.addcdiv.default)


def program_of(net, optimizer, **options):
    stepped = fg.step(net, optimizer, backend="eager")(step_of(net, optimizer, **options))
    for _ in range(2):  # the first one may create state
        stepped(torch.ones(2, 6))
    return stepped.captures[-1].program


@pytest.mark.parametrize("kind", ["SGD", "AdamW", "RMSprop", "Adagrad"])
@pytest.mark.parametrize("foreach", [False, True])
def test_steps_with_early_updates_are_bitwise_the_same(kind, foreach):
    results = []
    for passes in ((), (early_updates,)):
        net = model()
        optimizer = getattr(torch.optim, kind)(net.parameters(), lr=0.1, foreach=foreach)
        stepped = fg.step(net, optimizer, backend="eager", passes=passes)(step_of(net, optimizer))
        losses = [stepped(torch.ones(2, 6) * i) for i in range(4)]
        results.append([*losses, *net.state_dict().values(), *(p.grad for p in net.parameters())])
    for one, other in zip(*results, strict=True):
        assert torch.equal(one, other)


def test_a_weight_is_updated_before_the_backward_goes_on():
    net = model()
    program = program_of(net, torch.optim.AdamW(net.parameters(), foreach=False))
    moved = early_updates(program)
    assert num_before_the_last_product(program) == 0
    assert num_before_the_last_product(moved) == 4  # those of the later layers
    moved.verify()


def test_what_needs_all_gradients_stays_behind_them():
    net = model()
    program = program_of(net, torch.optim.AdamW(net.parameters(), foreach=False), clip=True)
    assert num_before_the_last_product(early_updates(program)) == 0


def test_contents_that_are_still_read_are_overwritten_after_that():
    def step(x, w):
        first = x * 2
        later = (first + w).sin().cos()
        last = (later * w).exp()
        w.copy_(first.tan().tan())
        return last.exp()

    program = fg.capture(step, torch.ones(3), torch.ones(3))
    order = [name.split("_")[0] for name in names(early_updates(program)) if not name.startswith(("x", "w", "output"))]
    assert order == ["mul", "add", "sin", "cos", "mul", "tan", "tan", "copy", "exp", "exp"]
    x, w = torch.rand(3), torch.rand(3)
    assert all(map(torch.equal, program(x, w), early_updates(program)(x, w)))


def test_programs_with_a_backward_are_left():
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    program = fg.capture(net, torch.randn(2, 1, 5, 5))
    assert early_updates(program) is program


def test_random_numbers_of_an_optimizer_are_those_of_eager():
    class Langevin(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, {"lr": 0.1})

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.add_(p.grad, alpha=-group["lr"]).add_(torch.randn_like(p), alpha=0.1)

    net, other = model(), model()
    assert all(map(torch.equal, net.parameters(), copy.deepcopy(other).parameters()))
    stepped = fg.step(net, optimizer := Langevin(net.parameters()), backend="eager", passes=(early_updates,))
    stepped, plain = stepped(step_of(net, optimizer)), step_of(other, Langevin(other.parameters()))
    for run in (stepped, plain):
        torch.manual_seed(3)
        for _ in range(3):
            run(torch.ones(2, 6))
    assert all(map(torch.equal, net.parameters(), other.parameters()))

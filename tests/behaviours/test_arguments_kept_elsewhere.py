"""Arguments that are, or share memory with, a tensor which the function also finds elsewhere; and then are not.

Each of two calls passes a tensor that stands in one of several relations to the one that is kept: a program that was
captured for one relation must not be used for another.
"""

import itertools
import sys
from types import SimpleNamespace

import pytest
import torch
from torch import nn

import foregrad as fg

#: From the tensor that is kept to the argument.
RELATIONS = {
    "itself": lambda kept: kept,
    "detached": lambda kept: kept.detach(),
    "its data": lambda kept: kept.data,
    "a view": lambda kept: kept.detach().view(4),
    "a part": lambda kept: kept.detach()[1:3],
    "turned": lambda kept: kept.detach().view(2, 2).t(),
    "another": lambda kept: torch.arange(5.0, 9.0),
    "another that needs a gradient": lambda kept: torch.arange(5.0, 9.0).requires_grad_(),
}
USES = {
    "read": lambda kept, given: (kept * 2).sum() + (given * 10).sum(),
    "read one only": lambda kept, given: (given * 10).sum() + kept.numel(),
    "written": lambda kept, given: (given.detach().mul_(3), (kept * 2).sum() + given.sum())[1],
    "keeper written": lambda kept, given: (kept.detach().add_(1), given * 1)[1].sum(),
    "returned": lambda kept, given: given,
}


def in_an_argument(kept, use):
    return (lambda given, other: use(other, given)), (lambda given: (given, kept))


def in_a_closure(kept, use):
    return (lambda given: use(kept, given)), (lambda given: (given,))


def in_a_global(kept, use):
    module = sys.modules[__name__]
    module.KEPT = kept
    return (lambda given: use(KEPT, given)), (lambda given: (given,))  # noqa: F821  # set above


def in_an_object(kept, use):
    box = SimpleNamespace(inner=[kept])
    return (lambda given: use(box.inner[0], given)), (lambda given: (given,))


class Holder(nn.Module):
    def __init__(self, kept, use):
        super().__init__()
        if isinstance(kept, nn.Parameter):
            self.kept = kept
        else:
            self.register_buffer("kept", kept)
        self.use = use

    def forward(self, given):
        return self.use(self.kept, given)


def in_a_module(kept, use):
    return Holder(kept, use), (lambda given: (given,))


KEEPERS = [in_an_argument, in_a_closure, in_a_global, in_an_object, in_a_module]


def seen(function, arguments, kept, relations):
    """What two calls leave behind."""
    found = []
    for relation in relations:
        given = RELATIONS[relation](kept)
        kept.grad = None
        out = function(*arguments(given))
        if out.requires_grad:
            out.sum().backward()
        grads = [None if one.grad is None else one.grad.tolist() for one in (kept, given) if one.is_leaf]
        found.append((relation, out.tolist(), kept.tolist(), given.tolist(), grads))
    return found


@pytest.mark.parametrize("needs_grad", [False, True])
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("keep", KEEPERS)
def test_each_call_finds_its_own_relation(keep, use, needs_grad):
    apart = {"a part"} if keep is not in_an_argument and use != "returned" else set()  # which is refused
    for relations in itertools.permutations([one for one in RELATIONS if one not in apart], 2):
        runs = []
        for wrap in (lambda f: f, lambda f: fg.compile(f, backend="eager", cache=False)):
            kept = nn.Parameter(torch.arange(1.0, 5.0)) if needs_grad else torch.arange(1.0, 5.0)
            function, arguments = keep(kept, USES[use])
            runs.append(seen(wrap(function), arguments, kept, (*relations, relations[0])))
        assert runs[0] == runs[1]


def test_a_part_of_what_is_kept_is_refused_and_not_the_whole():
    kept = torch.arange(1.0, 5.0)
    with pytest.raises(fg.CaptureError, match=r"reaches outside it(.|\n)*Pass both as arguments"):
        fg.compile(lambda given: (kept * 2).sum() + given.sum(), backend="eager", cache=False)(kept[1:3])


def test_a_step_that_is_given_a_parameter_and_then_another():
    def train(wrap):
        model = Holder(nn.Parameter(torch.ones(4)), USES["read"])
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

        @wrap(model, optimizer)
        def step(given):
            optimizer.zero_grad()
            loss = model(given)
            loss.backward()
            optimizer.step()
            return loss.detach()

        other = nn.Parameter(torch.full((4,), 7.0))
        losses = [step(given).item() for given in (model.kept, model.kept, other, other, model.kept)]
        return losses, model.kept.tolist(), other.grad.tolist()

    assert train(lambda *state: fg.step(*state, backend="eager", cache=False)) == train(lambda *_: lambda f: f)


def test_a_step_that_is_given_state_of_its_optimizer_and_then_another_tensor():
    def train(wrap):
        model = nn.Linear(2, 1, bias=False)
        nn.init.ones_(model.weight)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()

        @wrap(model, optimizer)
        def step(given):
            optimizer.zero_grad()
            loss = model(torch.ones(1, 2)).sum() + (given.detach() * 3).sum()
            loss.backward()
            optimizer.step()
            return loss.detach()

        kept = optimizer.state[model.weight]["momentum_buffer"]
        losses = [step(given).item() for given in (kept, kept, torch.full((1, 2), 7.0), kept)]
        return losses, model.weight.tolist(), kept.tolist()

    assert train(lambda *state: fg.step(*state, backend="eager", cache=False)) == train(lambda *_: lambda f: f)


@pytest.mark.parametrize("shift", [0, 1, 2])
def test_windows_of_one_tensor_that_lie_otherwise(shift):
    """Two windows that were one and the same, and then are not."""

    def f(x, y):
        return (x * 2 + y).sum(), x - y

    data, compiled = torch.arange(8.0), fg.compile(f, backend="eager", cache=False)
    for place in (0, shift, 0, 3):
        x, y = data[1:5], data[1 + place : 5 + place] if place != 3 else data[3:7].clone()
        for ours, theirs in zip(compiled(x, y), f(x, y), strict=True):
            assert torch.equal(ours, theirs)


def test_windows_that_move_through_a_tensor_are_captured_once():
    compiled = fg.compile(lambda x, y: (x * y).sum(), backend="eager", cache=False)
    data = torch.arange(20.0)
    for place in range(6):
        x, y = data[place : place + 4], data[place + 1 : place + 5]
        assert torch.equal(compiled(x, y), (x * y).sum())
    assert len(compiled.captures) == 1

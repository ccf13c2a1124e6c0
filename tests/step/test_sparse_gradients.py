"""Steps with sparse gradients of embeddings. Eager is the reference: what is updated, and the .grad that is left."""

import pytest
import torch
from torch import nn

import foregrad as fg
from tests.behaviours.test_sparse_gradients import TOKENS, kinds
from tests.compare import BACKEND, also_compiled

#: What torch says of every sparse tensor, once a process.
pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")


def same_steps(make, *, layer=nn.Embedding, clears="before", num_steps=4):
    """Train an embedding by a step, and the same without it."""
    found = []
    for decorate in (lambda *state: lambda step: step, lambda *state: fg.step(*state, backend=BACKEND)):
        torch.manual_seed(0)
        net = nn.Sequential(layer(5, 3, sparse=True), nn.Flatten(), nn.LazyLinear(1))
        net(TOKENS)
        optimizer = make(net)

        @decorate(net, optimizer)
        def step(tokens, net=net, optimizer=optimizer):
            if clears == "before":
                optimizer.zero_grad()
            loss = net(tokens).square().mean()
            loss.backward()
            optimizer.step()
            if clears == "after":
                optimizer.zero_grad()
            return loss

        seen = []
        for number in range(num_steps):
            seen.append([step((TOKENS + number) % 5).detach()])
            seen[-1] += [p.detach().clone() for p in net.parameters()]
            seen[-1] += [p.grad for p in net.parameters() if p.grad is not None]
        found.append(seen)
    for theirs, ours in zip(*found, strict=True):
        assert kinds(ours) == kinds(theirs)
        torch.testing.assert_close([t.to_dense() for t in ours], [t.to_dense() for t in theirs])
    return step


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=0.1)


@also_compiled
def test_sgd_adds_sparse_gradients_to_dense_weights():
    step = same_steps(sgd)
    assert len(step.captures) == 2  # without gradients, and with them


@pytest.mark.parametrize("mode", ["sum", "mean"])
def test_sgd_and_bags(mode):
    same_steps(sgd, layer=lambda *sizes, sparse: nn.EmbeddingBag(*sizes, sparse=sparse, mode=mode))


def test_a_sparse_gradient_that_is_cleared_last_is_none():
    assert len(same_steps(sgd, clears="after").captures) == 1


def test_rates_that_change_between_steps():
    net = nn.Embedding(5, 3, sparse=True)
    weight, optimizer = net.weight.detach().clone(), sgd(net)

    @fg.step(net, optimizer, backend=BACKEND)
    def step():
        optimizer.zero_grad()
        net(TOKENS).sum().backward()
        optimizer.step()

    for rate in (0.1, 0.2, 0.4):
        optimizer.param_groups[0]["lr"] = rate
        step()
        weight -= rate * torch.bincount(TOKENS.flatten(), minlength=5)[:, None]
    torch.testing.assert_close(net.weight.detach(), weight)


def test_a_step_that_adds_to_a_sparse_gradient_from_before_is_refused():
    with pytest.raises(fg.CaptureError, match=r"sparse .grad .*\n(.*\n)*.*zero_grad"):
        same_steps(sgd, clears="never")


def test_a_sparse_momentum_is_refused_before_anything_has_changed():
    net = nn.Embedding(5, 3, sparse=True)
    before, optimizer = net.weight.detach().clone(), torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)

    def step():
        net(TOKENS).sum().backward()
        optimizer.step()

    with pytest.raises(fg.CaptureError, match=r"stores a sparse tensor in optimizer\.state"):
        fg.step(net, optimizer, backend=BACKEND)(step)()
    assert torch.equal(net.weight, before)
    assert net.weight.grad is None


@pytest.mark.parametrize("kind", [torch.optim.SparseAdam, torch.optim.Adagrad])
def test_optimizers_that_look_into_sparse_gradients(kind):
    same_steps(lambda net: kind(net[0].parameters(), 0.1))


def test_there_is_a_program_for_each_number_of_rows():
    net = nn.Embedding(5, 3, sparse=True)
    optimizer = torch.optim.SparseAdam(net.parameters())

    @fg.step(net, optimizer, backend=BACKEND)
    def train(tokens):
        optimizer.zero_grad()
        net(tokens).sum().backward()
        optimizer.step()

    train(TOKENS)  # makes the state
    for tokens in ([1, 2, 2], [3, 3, 4], [0, 0, 0], [0, 4, 0], [1, 1, 1]):
        train(torch.tensor(tokens))
    assert len(train.captures) == 3  # and one for two rows, one for a row

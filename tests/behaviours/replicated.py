"""Run by test_distributed.py in two processes: a model trained by DistributedDataParallel, with foregrad in some place.

    python replicated.py rank file-to-meet-at

Each way either gives the weights of eager's, which both processes agree on, or is refused.
"""

import sys

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel as Replicas

import foregrad as fg


def main(rank, path):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=2)
    expected = train(lambda model: Replicas(model), rank)
    found = train(lambda model: Replicas(compiled(model)), rank)
    others = [torch.empty_like(found) for _ in range(2)]
    dist.all_gather(others, found)
    assert torch.equal(found, expected)
    assert torch.equal(others[0], others[1])
    assert torch.equal(uneven(lambda model: Replicas(compiled(model)), rank), uneven(lambda m: Replicas(m), rank))

    refused(lambda: train(lambda model: compiled(Replicas(model)), rank), "averages gradients over processes")
    refused(lambda: train(inside, rank), "averages gradients over processes")
    refused(lambda: step(rank, whole=True), "averages gradients over processes")
    refused(lambda: step(rank, whole=False), "hooks on its accumulator")
    dist.destroy_process_group()
    print("same")


def compiled(target):
    return fg.compile(target, backend="eager")


def inside(model):
    """A replicated module that is not the target itself."""
    replicas = Replicas(model)
    return compiled(nn.Sequential(nn.Identity(), replicas))


def made(rank):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    torch.manual_seed(rank)
    return model, [torch.randn(5, 3) for _ in range(4)]


def train(wrap, rank):
    model, data = made(rank)
    wrapped, optimizer = wrap(model), torch.optim.SGD(model.parameters(), 0.1)
    for x in data:
        optimizer.zero_grad()
        wrapped(x).square().sum().backward()
        optimizer.step()
    return weights(model)


def uneven(wrap, rank):
    """One process has fewer batches than the other."""
    model, data = made(rank)
    wrapped, optimizer = wrap(model), torch.optim.SGD(model.parameters(), 0.1)
    with Join([wrapped]):
        for x in data[rank:]:
            optimizer.zero_grad()
            wrapped(x).square().sum().backward()
            optimizer.step()
    return weights(model)


def step(rank, *, whole):
    """A training step of the replicas, or of the model inside them."""
    model, data = made(rank)
    replicas = Replicas(model)
    called, optimizer = replicas if whole else model, torch.optim.SGD(model.parameters(), 0.1)

    @fg.step(called, optimizer, backend="eager")
    def train_step(x):
        optimizer.zero_grad()
        called(x).square().sum().backward()
        optimizer.step()

    train_step(data[0])


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def refused(run, words):
    with pytest.raises(fg.CaptureError, match=words):
        run()


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])

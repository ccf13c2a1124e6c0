"""Run by test_subclasses.py in two processes: DTensors in layers, eager and captured side by side.

    python sharded.py rank file-to-meet-at

Each process is alone in a group first, and then both are in one.
"""

import contextlib
import os
import sys

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_module, distribute_tensor

import foregrad as fg

BACKEND = os.environ.get("FOREGRAD_BACKEND", "eager")
LINEAR, NORM, EMBEDDING = nn.Linear(6, 4), nn.LayerNorm(6), nn.Embedding(10, 6)
ROWS, COLUMNS, WHOLE = Shard(0), Shard(1), Replicate()

#: A layer, where its weight goes, where its argument goes.
CASES = [
    *((LINEAR, weight, given) for weight in (WHOLE, ROWS, COLUMNS) for given in (WHOLE, ROWS, COLUMNS)),
    *((NORM, WHOLE, given) for given in (WHOLE, ROWS, COLUMNS)),
    *((EMBEDDING, weight, WHOLE) for weight in (WHOLE, COLUMNS)),
    (EMBEDDING, WHOLE, ROWS),
]


def main(rank, path):
    torch.set_num_threads(1)
    with group(0, 1, f"{path}_{rank}") as mesh:
        for layer in (LINEAR, NORM, EMBEDDING):
            check(layer, ROWS if layer is LINEAR else WHOLE, WHOLE, mesh)
    with group(rank, 2, path) as mesh:
        for case in CASES:
            check(*case, mesh)
        collectives(mesh)
        for weight, given in ((ROWS, WHOLE), (WHOLE, ROWS)):
            training(weight, given, mesh)
    print("same")


@contextlib.contextmanager
def group(rank, size, path):
    dist.init_process_group("gloo", init_method=f"file://{path}", rank=rank, world_size=size)
    yield init_device_mesh("cpu", (size,))
    dist.destroy_process_group()


def check(layer, weight, given, mesh):
    expected = run(lambda fn: fn, layer, weight, given, mesh)
    found = run(compiled, layer, weight, given, mesh)
    compare(expected, found, f"{type(layer).__name__}, weight {weight}, argument {given}")


def compiled(fn):
    return fg.compile(fn, backend=BACKEND)


def run(wrap, layer, weight, given, mesh):
    """The result, its placements and the gradients, of two calls."""
    torch.manual_seed(0)
    layer = type(layer)(*(getattr(layer, name) for name in layer.__constants__ if name in ARGUMENTS))
    placed = {"weight": weight, "bias": weight if weight == ROWS else WHOLE}

    def place(_, module, mesh):
        for name, parameter in list(module.named_parameters()):
            module.register_parameter(name, nn.Parameter(distribute_tensor(parameter.data, mesh, [placed[name]])))

    distribute_module(layer, mesh, place)
    x = torch.randint(10, (4, 6)) if isinstance(layer, nn.Embedding) else torch.randn(4, 6)
    x = distribute_tensor(x, mesh, [given]).requires_grad_(x.is_floating_point())
    call = wrap(layer)
    for _ in range(2):
        out = call(x)
        out.sin().sum().backward()
    leaves = [*layer.parameters(), *([x] if x.requires_grad else [])]
    return out.placements, [out, *(leaf.grad for leaf in leaves)], [type(leaf.grad) for leaf in leaves]


ARGUMENTS = ("in_features", "out_features", "normalized_shape", "num_embeddings", "embedding_dim")


def compare(expected, found, name):
    assert found[0] == expected[0], (name, found[0], expected[0])
    assert found[2] == expected[2], (name, found[2])
    for one, other in zip(expected[1], found[1], strict=True):
        # Sums of parts come in another order where a gradient arrives in another placement than it leaves in eager.
        torch.testing.assert_close(
            other.full_tensor(), one.full_tensor(), rtol=1e-5, atol=1e-6, msg=lambda m: f"{name}: {m}"
        )


def collectives(mesh):
    """What DTensor sends is in the program, each time that it is sent, and waited for."""

    @compiled
    def twice(x):
        first, second = x.redistribute(placements=[WHOLE]), x.redistribute(placements=[WHOLE])
        x.redistribute(placements=[WHOLE])  # used by nobody, but the others wait for it
        return (first * second).to_local() * 2, x.sum()

    x = distribute_tensor(torch.randn(4, 6), mesh, [ROWS]).requires_grad_()
    out, total = twice(x)
    assert type(out) is torch.Tensor, type(out)
    assert total.placements == (Partial(),), total.placements
    torch.testing.assert_close(out, x.full_tensor() ** 2 * 2)
    (out.sum() + total.full_tensor()).backward()
    assert isinstance(x.grad, DTensor)
    torch.testing.assert_close(x.grad.full_tensor(), x.full_tensor() * 4 + 1)
    text = str(twice.captures[0].program)
    assert text.count("_c10d_functional.all_gather_into_tensor(") == 3, text
    assert text.count("_c10d_functional.wait_tensor(") >= 3, text


def training(weight, given, mesh):
    """Three steps, with gradients and state of an optimizer that are DTensors."""
    found = []
    for decorate in (lambda *state: lambda step: step, lambda *state: fg.step(*state, backend=BACKEND)):
        torch.manual_seed(0)
        layer = nn.Linear(6, 4, bias=False)
        layer.weight = nn.Parameter(distribute_tensor(layer.weight.detach(), mesh, [weight]))
        optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1)

        @decorate(layer, optimizer)
        def step(x, layer=layer, optimizer=optimizer):
            optimizer.zero_grad()
            layer(x).square().sum().backward()
            optimizer.step()

        for _ in range(3):
            step(distribute_tensor(torch.randn(4, 6), mesh, [given]))
        state = optimizer.state[layer.weight]
        tensors = [layer.weight.detach(), layer.weight.grad, state["exp_avg"], state["exp_avg_sq"]]
        found.append(([one.placements for one in tensors], tensors, [type(one) for one in tensors]))
    compare(*found, f"training, weight {weight}, argument {given}")


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
    sys.stdout.flush()
    os._exit(0)  # now and then torch 2.13 aborts when it ends a thread of gloo's at the end of a process

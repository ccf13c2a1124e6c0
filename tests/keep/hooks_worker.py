"""Modules with hooks of every kind, compiled with the cache in a folder: what became of each, as JSON.

python hooks_worker.py FOLDER VARIANT DATA: hooks are other ones in each variant, their tensors hold other data.
"""

import functools
import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as everywhere

import foregrad as fg

FOLDER, VARIANT, DATA = sys.argv[1], sys.argv[2], float(sys.argv[3])
IS_B = VARIANT == "b"
FACTOR = 3.0 if IS_B else 2.0


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.into, self.act = nn.Linear(3, 3), nn.Tanh()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.act(self.into(x))


class Scale:
    def __init__(self, by: Any) -> None:
        self.by = by

    def __call__(self, module, args, result):
        return result * self.by

    def before(self, module, args):
        return (args[0] * self.by,)

    def behind(self, module, inwards, outwards):
        return tuple(None if one is None else one * self.by for one in inwards)


def doubled(module, args, result):
    return result * 2


def plus_one(module, args, result):
    return result + 1


def scaled(by):
    def hook(module, args, result):
        return result * by

    return hook


def scaled_by_default(by):
    def hook(module, args, result, by=by):
        return result * by

    return hook


def through(inner):
    return lambda module, args, result: inner(result)


def wrapped(hook):
    @functools.wraps(hook)
    def outer(*given):
        return hook(*given)

    return outer


def product(by, module, args, result):
    return result * by


def by_keywords(module, args, *rest):
    return rest[-1] * (2 if len(rest) == 1 else 3)


def data() -> torch.Tensor:
    return torch.full((3,), DATA)


def both(net: Net, first: Any, second: Any) -> list[Any]:
    return [net.into.register_forward_hook(hook) for hook in ((second, first) if IS_B else (first, second))]


def two_tensors(net: Net) -> list[Any]:
    """Two hooks with one tensor, or with one each."""
    one = data()
    other = data() + 1 if IS_B else one
    return [net.into.register_forward_hook(scaled(w)) for w in (one, other)]


#: What differs between the variants.
CHANGES: dict[str, Callable[[Net], Any]] = {
    "a closure": lambda net: net.into.register_forward_hook(scaled(FACTOR)),
    "an object": lambda net: net.into.register_forward_hook(Scale(FACTOR)),
    "a method": lambda net: net.into.register_forward_pre_hook(Scale(FACTOR).before),
    "a partial": lambda net: net.into.register_forward_hook(functools.partial(product, FACTOR)),
    "a default": lambda net: net.into.register_forward_hook(scaled_by_default(FACTOR)),
    "which": lambda net: net.into.register_forward_hook(plus_one if IS_B else doubled),
    "whether": lambda net: net.act.register_forward_hook(doubled) if IS_B else None,
    "where": lambda net: (net if IS_B else net.into).register_forward_hook(plus_one),
    "the order": lambda net: both(net, doubled, plus_one),
    "prepended": lambda net: [
        net.act.register_forward_hook(doubled),
        net.act.register_forward_hook(plus_one, prepend=IS_B),
    ],
    "with keywords": lambda net: net.into.register_forward_hook(by_keywords, with_kwargs=IS_B),
    "which has keywords": lambda net: [
        net.into.register_forward_hook(by_keywords, with_kwargs=one)
        for one in ((True, False) if IS_B else (False, True))
    ],
    "before, with keywords": lambda net: net.into.register_forward_pre_hook(
        lambda module, args, *rest: ((args[0] * FACTOR,), *rest), with_kwargs=True
    ),
    "always called": lambda net: net.into.register_forward_hook(scaled(5.0), always_call=IS_B),
    "backward": lambda net: net.into.register_full_backward_hook(Scale(FACTOR).behind),
    "shared tensors": two_tensors,
    "of all, a closure": lambda net: everywhere.register_module_forward_hook(scaled(FACTOR)),
    "of all, an object": lambda net: everywhere.register_module_forward_hook(Scale(FACTOR)),
    "of all, which is always called": lambda net: [
        everywhere.register_module_forward_hook(scaled(2.0), always_call=one)
        for one in ((True, False) if IS_B else (False, True))
    ],
    "of all, the order": lambda net: [
        everywhere.register_module_forward_hook(hook) for hook in ((doubled, plus_one) if IS_B else (plus_one, doubled))
    ],
}

#: What is the same in both variants: tensors and modules that hooks hold are found, with the data that they have.
SAME: dict[str, Callable[[Net], Any]] = {
    "a tensor in a closure": lambda net: net.into.register_forward_hook(scaled(data())),
    "a parameter in a closure": lambda net: net.into.register_forward_hook(scaled(nn.Parameter(data()))),
    "a tensor of an object": lambda net: net.into.register_forward_hook(Scale(data())),
    "a tensor of a method's object": lambda net: net.into.register_forward_pre_hook(Scale(data()).before),
    "a tensor in a partial": lambda net: net.into.register_forward_hook(functools.partial(product, data())),
    "a tensor as a default": lambda net: net.into.register_forward_hook(scaled_by_default(data())),
    "a tensor in a wrapped hook": lambda net: net.into.register_forward_hook(wrapped(scaled(data()))),
    "a module in a closure": lambda net: net.into.register_forward_hook(through(nn.Linear(3, 3))),
    "its own module": lambda net: net.into.register_forward_hook(through(net.act)),
    "a module with a hook": lambda net: net.into.register_forward_hook(through(with_hook(nn.Linear(3, 3)))),
    "backward with a tensor": lambda net: net.into.register_full_backward_hook(Scale(data()).behind),
    "of all, with a tensor": lambda net: everywhere.register_module_forward_hook(scaled(data())),
    "of all, an object with a tensor": lambda net: everywhere.register_module_forward_hook(Scale(data())),
}


def with_hook(module: nn.Module) -> nn.Module:
    module.register_forward_hook(scaled(data()))
    return module


def outcome(name: str, add: Callable[[Net], Any]) -> dict[str, Any]:
    torch.manual_seed(int(DATA))
    net, x = Net(), torch.randn(2, 3, requires_grad=True)
    added = add(net)
    compiled = fg.compile(net, backend="eager", cache=f"{FOLDER}/{name}")
    try:
        got, expected = (run(function, net, x) for function in (compiled, net))
    finally:
        for handle in added if isinstance(added, list) else [added] if added else []:
            handle.remove()
    return {"origin": str(compiled.origin), "is right": all(map(torch.equal, got, expected))}


def run(function, net: Net, x: torch.Tensor) -> list[torch.Tensor]:
    result = function(x)
    return [result, *torch.autograd.grad(result.square().sum(), [x, *net.parameters()])]


if __name__ == "__main__":
    print(json.dumps({name: outcome(name, add) for name, add in {**CHANGES, **SAME}.items()}))

"""A random program as a value: statements that print as Python source and run by exec of that source."""

from __future__ import annotations

import itertools
import re
import textwrap
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any


@dataclass(frozen=True)
class Statement:
    """One line of a program, and the `with` blocks around it, outermost first."""

    kind: str
    text: str
    blocks: tuple[str, ...] = ()

    @property
    def target(self) -> str:
        return self.text.split(" = ")[0]


@dataclass(frozen=True)
class Scenario:
    """What the comparer does with the program's results.

    backward: "all" roots at once, "some" of them, "create_graph" (then a second backward), or "arguments"
    (gradients also of arguments that are not leaves). write: what the caller writes to in place after the
    call. calls: "once", "twice", or "interleaved" (two calls, then two backwards). repeats: how often each backward
    runs. marks: the share of values that the compiled function computes again in backward.
    """

    backward: str = "all"
    write: str = ""
    calls: str = "once"
    repeats: int = 1
    marks: float = 0.0


@dataclass(frozen=True)
class FuzzProgram:
    """`make_inputs()` gives the arguments and every tensor that the caller still sees; `fn` is under test."""

    seed: int
    setup: tuple[Statement, ...]
    arguments: tuple[tuple[str, str], ...]  # parameter of fn, expression given for it
    body: tuple[Statement, ...]
    returns: tuple[str, ...]
    container: str
    scenario: Scenario

    def source(self) -> str:
        parameters = ", ".join(name for name, _ in self.arguments)
        given = "".join(f"{expression}, " for _, expression in self.arguments)
        watched = ", ".join(f"{s.target}={s.target}" for s in self.setup)
        lines = [
            f"# seed {self.seed}: {self.scenario}",
            HEADER,
            *(text for name, text in FUNCTIONS.items() if any(re.search(rf"\b{name}\b", s.text) for s in self.body)),
            "def make_inputs():",
            indent(render(self.setup)),
            f"    return ({given}), dict({watched})\n\n",
            f"def fn({parameters}):",
            indent(render(self.body)),
            f"    return {CONTAINERS[self.container](self.returns)}",
        ]
        return "\n".join(line for line in lines if line) + "\n"

    def load(self) -> dict[str, Any]:
        """The names that the source defines: `make_inputs`, `fn`, `generator`."""
        scope: dict[str, Any] = {"__name__": f"fuzz_{self.seed}"}
        exec(compile(self.source(), f"<fuzz {self.seed}>", "exec"), scope)
        return scope

    @property
    def goes_back_once(self) -> bool:
        """Whether eager refuses a second backward, as a selective checkpoint does, also after one that was refused."""
        return any("selective" in statement.text for statement in self.body)

    @property
    def is_wide(self) -> bool:
        """Whether all inputs are in double precision."""
        return all("float64" in s.text or "complex128" in s.text for s in self.setup if "rand(" in s.text)

    @property
    def has_data_alias(self) -> bool:
        """Whether an argument is the `.data` of another: autograd does not count what is written to it."""
        return any(".data" in statement.text for statement in self.setup)

    def but(self, **changes: Any) -> FuzzProgram:
        return replace(self, **changes)


def render(statements: Iterable[Statement]) -> str:
    """The statements as text; neighbours in the same `with` blocks share them."""
    lines = []
    for blocks, group in itertools.groupby(statements, key=lambda s: s.blocks):
        for depth, block in enumerate(blocks):
            lines.append("    " * depth + f"with {block}:")
        lines += [textwrap.indent(statement.text, "    " * len(blocks)) for statement in group]
    return "\n".join(lines)


def indent(text: str) -> str:
    return textwrap.indent(text, "    ")


def _tuple(items: Iterable[str]) -> str:
    return "(" + "".join(f"{item}, " for item in items) + ")"


CONTAINERS = {
    "single": lambda items: items[0] if len(items) == 1 else _tuple(items),
    "tuple": _tuple,
    "list": lambda items: "[" + ", ".join(items) + "]",
    "dict": lambda items: "{" + ", ".join(f'"k{i}": {item}' for i, item in enumerate(items)) + "}",
    "nested": lambda items: "(" + items[0] + ', {"rest": ' + _tuple(items[1:]) + ', "count": 3}, None)',
}

HEADER = """\
import math

import torch

generator = torch.Generator()

def rand(*size, dtype=torch.float32):
    return torch.rand(size, generator=generator, dtype=dtype) * 2 - 0.8

def ints(*size):
    return torch.randint(0, 4, size, generator=generator)

"""

FUNCTIONS = {
    "own": "own = torch.Generator()\n\n",
    "noisy": """\
noisy = torch.nn.Sequential(
    torch.nn.Dropout(0.3), torch.nn.Tanh(), torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Sigmoid())
)

""",
    "selective": """\
def selective():
    from torch.utils.checkpoint import CheckpointPolicy, create_selective_checkpoint_contexts

    def policy(context, op, *args, **kwargs):
        must = str(op) in ("aten.sin.default", "aten.exp.default", "aten.mul.Tensor", "aten.rand_like.default")
        return CheckpointPolicy.MUST_SAVE if must else CheckpointPolicy.PREFER_RECOMPUTE

    return create_selective_checkpoint_contexts(policy)

""",
    "again": """\
def again(function, x, times=1, **options):
    for _ in range(times):
        x = torch.utils.checkpoint.checkpoint(function, x, use_reentrant=False, **options)
    return x

""",
    "Tripled": """\
class Tripled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 3

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

""",
    "SavedProduct": """\
class SavedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        ctx.factor = 0.5
        return x * y, x + y

    @staticmethod
    def backward(ctx, product, total):
        x, y = ctx.saved_tensors
        of_x = (product * y * ctx.factor + total).sum_to_size(x.shape)
        return of_x, (product * x + total).sum_to_size(y.shape)

""",
    "Viewed": """\
class Viewed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.view_as(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 5

""",
    "halved": """\
def halved(x, limit):
    times = 0
    while x.abs().sum() > limit and times < 5:
        x, times = x * 0.5, times + 1
    return x

""",
    "grown": """\
def grown(x, limit):
    for _ in range(3):
        if x.mean().item() > limit:
            break
        x = x + 0.3
    return x

""",
    "Branches": """\
class Branches(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.is_positive = bool(x.sum() > 0.5)
        return x * 3 if ctx.is_positive else x.sin()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2 if ctx.is_positive else gradient

""",
    "Chooses": """\
class Chooses(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * x.mean().item()

    @staticmethod
    def backward(ctx, gradient):
        (x,) = ctx.saved_tensors
        return gradient * 2 if x.sum() > 0.5 else gradient.cos()

""",
    "Written": """\
class Written(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2

""",
}

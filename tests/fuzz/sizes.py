"""Random programs over sizes that vary: each is compiled once and called with many sizes, with eager as the reference.

    python -m tests.fuzz.sizes --count 100 --backend inductor

Values, gradients and second gradients are compared to rounding with a backend that compiles, bitwise op by op; shapes,
strides and plain numbers always. A program says which dimensions vary by `dynamic=`, or is left to find out.
"""

from __future__ import annotations

import argparse
import random
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F

WIDTH = 4

#: On a tensor `t` of three dimensions, of which the last has the size 4; each gives such a tensor again.
LINES = (
    "t = t.sin() * t.shape[0]",
    "t = t / t.shape[1] ** 0.5 + t.size(0) // 2",
    "t = t.softmax(-1)",
    "t = t.softmax(1) * t.shape[1]",
    "t = t.transpose(0, 1)",
    "t = t.transpose(0, 1).contiguous()",
    "t = t + torch.arange(t.shape[1])[None, :, None] / 8",
    "t = t.flip(1)",
    "t = torch.cat([t, t.cos()], 1)",
    "t = torch.cat([t[:, 1:], t[:, :1] * 2], 1)",
    "t = t[:, : t.shape[1] - 1] if t.shape[1] > 2 else t * 3",
    "t = t[:, ::2] if t.shape[1] > 3 else t",
    "t = F.pad(t, (0, 0, 1, 2))",
    "t = t - t.mean(1, keepdim=True)",
    "t = t * t.var((0, 1), keepdim=True)",
    "t = t.cumsum(1) / t.shape[1]",
    "t = t.reshape(t.shape[0], -1).tanh().view(t.shape[0], -1, 4)",
    "t = t.reshape(-1, 4).sigmoid().reshape(t.shape)",
    "t = (t @ w).relu()",
    "t = F.layer_norm(t, (4,)) @ w",
    "t = F.linear(t, w, w[0])",
    "t = t.masked_fill(torch.ones(t.shape[1], t.shape[1]).tril().sum(0)[None, :, None] > 2, 0.5)",
    "t = t.index_select(1, torch.arange(t.shape[1] - 1, -1, -1))",
    "t = t.expand(2, *t.shape)[1] * 2",
    "t = t.clone().mul_(2).add_(t)",
    "y = t * 1; y[:, ::2] = 0; t = y",
    "y = t * 1; y[:, -1] += t.sum(1); t = y",
    "y = t * 1; y.view(-1)[: t.shape[0]] *= 2; t = y",
    "t = t.gather(1, t.argsort(1))",
    "t = torch.stack([t, t * 2]).sum(0)",
    "t = t.roll(1, 1)",
    "t = torch.where(t > 0, t, t.square())",
    "t = F.dropout(t, 0.5)",
    "t = t * torch.rand(t.shape[0], 1, 1)",
    "t = F.scaled_dot_product_attention(t, t, t * 2)",
    "t = torch.einsum('bij,bkj->bik', t, t).softmax(-1) @ t",
    "t = F.conv1d(t.transpose(1, 2), k, padding=1).transpose(1, 2)",
    "t = t.repeat(1, 2, 1)",
    "t = t.repeat_interleave(2, dim=1)",
    "t = t.amax(1, keepdim=True) - t",
    "t = t * t.sum() / t.numel()",
    "t = t.unsqueeze(1).squeeze(1).detach() + t",
    "t = t + t.new_ones(t.shape[1], 1) * torch.linspace(0, 1, 4)",
    "t = F.embedding(torch.arange(t.shape[1]) % 6, table)[None] + t",
    "t = t.chunk(2, 2)[0].repeat(1, 1, 2)",
    "t = sum(t.split(2, 2)).repeat(1, 1, 2) if t.shape[0] > 1 else t",
    "t = t.log_softmax(2).logsumexp(1, keepdim=True) + t",
    "t = t.view(t.shape[0], t.shape[1], 2, 2).transpose(2, 3).flatten(2) if t.is_contiguous() else t.neg()",
    "t = torch.bmm(t, t.transpose(1, 2)).tril().bmm(t) / t.shape[1]",
)
RESULTS = (
    "t",
    "t.sum()",
    "(t, t.shape[0])",
    "(t.mean(1), t.shape[1] * 2, t.shape)",
    "t.transpose(0, 1)",
    "t.view(-1)[1:]",
)


@dataclass(frozen=True)
class SizeProgram:
    """A function of one tensor and of constants around it, the sizes of its calls, and how it is compiled."""

    seed: int
    lines: tuple[str, ...]
    result: str
    sizes: tuple[tuple[int, int], ...]
    dynamic: Any

    @staticmethod
    def of(seed: int) -> SizeProgram:
        draw = random.Random(seed)
        lines = tuple(draw.choice(LINES) for _ in range(draw.randint(1, 6)))
        sizes = tuple((draw.randint(2, 7), draw.randint(2, 9)) for _ in range(4))
        sizes += ((draw.choice((1, 3)), draw.choice((1, 2, 40))),)
        return SizeProgram(
            seed, lines, draw.choice(RESULTS), sizes, draw.choice((True, None, {"t": (0, 1)}, {"t": (1,)}))
        )

    def source(self) -> str:
        return "".join(f"    {line}\n" for line in ("def fn(t):", *self.lines, f"return {self.result}")).lstrip()

    def load(self) -> Callable[[torch.Tensor], Any]:
        made = torch.Generator().manual_seed(self.seed)
        scope: dict[str, Any] = {"torch": torch, "F": F}
        scope |= {
            name: torch.randn(shape, generator=made)
            for name, shape in {"w": (4, 4), "k": (4, 4, 3), "table": (6, 4)}.items()
        }
        exec("def fn(t):\n" + "".join(f"    {line}\n" for line in (*self.lines, f"return {self.result}")), scope)
        found: Callable[[torch.Tensor], Any] = scope["fn"]
        return found


def verdict_of(program: SizeProgram, backend: str) -> str | None:
    """None if compiled and eager agree for all sizes, else the first difference."""
    import foregrad as fg

    function = program.load()
    compiled = fg.compile(function, backend=backend, dynamic=program.dynamic, cache=False, progress=False)
    for number, size in enumerate(program.sizes):
        seen = [_observed(call, size, program.seed + number) for call in (function, compiled)]
        for what, (expected, found) in enumerate(zip(*seen, strict=False)):
            if (why := _difference(expected, found, backend == "eager")) is not None:
                return f"call {number} with {size}, value {what}: {why}"
        if len(seen[0]) != len(seen[1]):
            return f"call {number} with {size}: eager {seen[0][-1]}, compiled {seen[1][-1]}"
    return None


def _observed(call: Callable[[torch.Tensor], Any], size: tuple[int, int], seed: int) -> list[Any]:
    """Results, gradients and second gradients, or the type of an error."""
    torch.manual_seed(seed)
    t = torch.randn(*size, WIDTH).requires_grad_()
    try:
        result = call(t)
    except (RuntimeError, IndexError, ValueError) as error:
        return [type(error).__name__]
    leaves = torch.utils._pytree.tree_leaves(result)
    wanted = [one for one in leaves if isinstance(one, torch.Tensor) and one.requires_grad]
    if not wanted:
        return [*leaves, torch.rand(1)]
    tangents = [torch.linspace(-1, 1, one.numel()).reshape(one.shape).requires_grad_() for one in wanted]
    is_second = seed % 2 == 0
    (first,) = torch.autograd.grad(wanted, t, tangents, create_graph=is_second)
    second = torch.autograd.grad(first.sin().sum(), [t, *tangents], allow_unused=True) if is_second else []
    return [*leaves, first, *second, torch.rand(1)]


def _difference(expected: Any, found: Any, is_bitwise: bool) -> str | None:
    if not isinstance(expected, torch.Tensor) or not isinstance(found, torch.Tensor):
        zero = [one is None or (isinstance(one, torch.Tensor) and not one.any()) for one in (expected, found)]
        same = all(zero) if None in (expected, found) else type(expected) is type(found) and expected == found
        return None if same else f"eager {expected!r}, compiled {found!r}"
    if (expected.shape, expected.dtype) != (found.shape, found.dtype):
        return f"eager {expected.shape} {expected.dtype}, compiled {found.shape} {found.dtype}"
    one, other = expected.detach(), found.detach()
    if (
        is_bitwise
        and not torch.equal(one, other)
        and not torch.allclose(one, other, rtol=1e-5, atol=1e-6, equal_nan=True)
    ):
        return f"by {(one - other).abs().max()}"
    scale = 1 + float(one.nan_to_num().abs().max()) if one.numel() else 1.0
    if not torch.allclose(one, other, rtol=1e-3, atol=1e-4 * scale, equal_nan=True):
        return f"by {(one - other).abs().max()}, of {scale}"
    return None


def run(seeds: range, backend: str) -> dict[int, str]:
    """The seeds that failed, with what is wrong."""
    found: dict[int, str] = {}
    for seed in seeds:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                why = verdict_of(SizeProgram.of(seed), backend)
        except Exception as error:
            why = f"{type(error).__name__}: {error}"
        if why is not None:
            found[seed] = why
            print(f"seed {seed}: {why}", file=sys.stderr, flush=True)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz.sizes", description=__doc__)
    parser.add_argument("--count", type=int, default=100, help="number of programs")
    parser.add_argument("--start", type=int, default=0, help="first seed")
    parser.add_argument("--backend", default="inductor", help="what compiles them")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = run(range(options.start, options.start + options.count), options.backend)
    for seed, why in failed.items():
        program = SizeProgram.of(seed)
        print(f"# seed {seed}, dynamic={program.dynamic}, sizes {program.sizes}\n{program.source()}# {why}\n")
    print(f"{options.count - len(failed)} of {options.count} programs equal eager")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

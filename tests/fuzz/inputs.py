"""The inputs of a random program: leaves, non-leaves, views of hidden bases, aliases of each other."""

from __future__ import annotations

import random

from tests.fuzz.program import Statement

SIZES = ("2, 3", "3, 2", "3", "4", "2, 2", "3, 3", "2, 2, 3", "1, 3", "6", "4, 4", "")
RARE_SIZES = ("0, 3", "2, 1, 2", "1")
HISTORIES = ("{} * 1.5", "{}.clone()", "{}.sin()", "{} + 0")
VIEWS = (
    *(
        "{}[1:]",
        "{}[0]",
        "{}.view(-1)",
        "{}.t()",
        "{}[:, :2]",
        "{}[::2]",
        "{}.unsqueeze(0)",
        "{}.transpose(0, -1)",
    ),
    *(
        "{}.diagonal()",
        "{}.detach()",
        "{}.expand(2, *{}.shape)",
        "{}.select(-1, 0)",
        "{}.unbind(0)[0]",
        "{}.split(2)[0]",
    ),
)
ALIASES = (
    *(
        "{}[:-1]",
        "{}[1:]",
        "{}[:1]",
        "{}[-1:]",
        "{}[0::2]",
        "{}[1::2]",
        "{}.view(-1)",
        "{}.t()",
        "{}.view_as({})",
    ),
    *("{}.detach()", "{}.detach()", "{}.data", "{}[0]", "{}.reshape(-1)[1:]"),
)


def candidates(rng: random.Random, name: str, made: list[str]) -> list[Statement]:
    """Lines that may make the input `name`; `made` holds the tensors that earlier inputs brought."""
    kinds = [plain, leaf, leaf, leaf, *[nonleaf] * 5, view, view, view, strided, odd]
    if made:
        kinds += [alias] * 5
    return rng.choice(kinds)(rng, name, made)


def plain(rng, name, made):
    return [_tensor(rng, name)]


def leaf(rng, name, made):
    return [_tensor(rng, name, ".requires_grad_()")]


def nonleaf(rng, name, made):
    source = f"{name}_leaf"
    return [
        _tensor(rng, source, ".requires_grad_()"),
        Statement("nonleaf", f"{name} = {_of(rng, HISTORIES, source)}"),
    ]


def view(rng, name, made):
    """A view of a hidden base, which is a leaf, a non-leaf or needs no gradient."""
    base = f"{name}_base"
    lines = rng.choice((plain, leaf, nonleaf, nonleaf))(rng, base, made)
    blocks = ("torch.no_grad()",) if rng.random() < 0.06 else ()
    return [*lines, Statement("view", f"{name} = {_of(rng, VIEWS, base)}", blocks)]


def alias(rng, name, made):
    """A view of a tensor that an earlier input brought: overlapping it, beside it, or all of it."""
    return [Statement("alias", f"{name} = {_of(rng, ALIASES, rng.choice(made))}")]


def strided(rng, name, made):
    """Not contiguous."""
    expressions = (
        "rand(3, 2).t()",
        "rand(2, 6)[:, ::2]",
        "rand(3).expand(2, 3)",
        "rand(2, 3, 2).permute(2, 0, 1)",
    )
    grad = rng.choice(("", ".requires_grad_()", ".requires_grad_()"))
    return [Statement("strided", f"{name} = {rng.choice(expressions)}{grad}")]


def odd(rng, name, made):
    expressions = (
        "ints(2, 3)",
        "ints(3)",
        "ints(2, 3) > 1",
        "torch.complex(rand(2, 2), rand(2, 2))",
        "rand()",
        "rand().requires_grad_()",
    )
    return [Statement("odd", f"{name} = {rng.choice(expressions)}")]


def _tensor(rng, name, grad=""):
    size = rng.choice(RARE_SIZES if rng.random() < 0.06 else SIZES)
    dtype = ("dtype=torch.float64",) if rng.random() < 0.15 else ()
    arguments = ", ".join((size, *dtype)) if size else "".join(dtype)
    return Statement("tensor", f"{name} = rand({arguments}){grad}")


def _of(rng, forms, source):
    return rng.choice(forms).replace("{}", source)

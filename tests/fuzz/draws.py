"""Statements that draw random numbers: dropout, distributions, generators, modules, and checkpoints around them."""

from __future__ import annotations

import ast
from collections.abc import Callable

from tests.fuzz.scope import Scope
from tests.fuzz.statements import (
    binary,
    convert,
    create,
    custom_function,
    gather,
    hook,
    inner_gradient,
    masked,
    matmul,
    pointwise,
    random_write,
    reduction,
    view_write,
    written,
)
from tests.fuzz.views import detached, permuted, reshape, resized, several, sliced

#: Expressions of one tensor that draw, most of them differentiable.
NOISE = (
    *(
        "torch.dropout({0}, 0.5, True)",
        "torch.nn.functional.dropout({0}, 0.3)",
        "torch.nn.functional.dropout({0}, 0.9)",
    ),
    *("torch.nn.functional.alpha_dropout({0}, 0.4, True)", "torch.feature_dropout({0}, 0.5, True)"),
    *("{0} * torch.rand_like({0})", "{0}.sin() * torch.rand({0}.shape)", "{0} + torch.randn_like({0}) * {0}.cos()"),
    *(
        "{0} * torch.bernoulli({0}.detach().sigmoid())",
        "torch.normal({0}, 0.5)",
        "torch.normal({0}.detach(), 1.0) * {0}",
    ),
    *("{0} * torch.empty({0}.shape).normal_()", "{0}.exp() * torch.empty({0}.shape).uniform_(-1, 1)"),
    *("{0} * torch.zeros_like({0}).bernoulli_(0.5)", "{0}.cos() * torch.empty({0}.shape).exponential_()"),
    *("{0}[torch.randperm({0}.shape[0])]", "{0} * torch.randint(0, 3, {0}.shape)"),
    *("{0} * {0}.detach().abs().softmax(-1).multinomial(1).sum()", "torch.nn.functional.gumbel_softmax({0}, dim=-1)"),
    *("torch.native_dropout({0}, 0.5, True)[0]", "{0} * torch.poisson({0}.detach().abs())"),
    "torch.nn.functional.scaled_dot_product_attention({0}, {0}, {0}, dropout_p=0.3)",
)
#: The same with a generator of the program's.
OWN_NOISE = (
    *("{0} * torch.rand({0}.shape, generator=own)", "{0} * torch.bernoulli({0}.detach().sigmoid(), generator=own)"),
    *("{0}.sin() + torch.randn({0}.shape, generator=own)", "torch.normal({0}, 0.5, generator=own)"),
    *("{0}[torch.randperm({0}.shape[0], generator=own)]", "{0} * torch.empty({0}.shape).uniform_(generator=own)"),
)
PLAIN = ("{0}.sin()", "{0}.exp().clamp(max=3.0)", "{0}.sigmoid() * {0}", "{0}.tanh()", "{0} * 0.5", "{0}.cos()")
#: Not inside a checkpoint: eager (torch 2.13) stops its second run when the noise is saved, before it is drawn.
LATE_NOISE = ("torch.rrelu({0}, training=True)",)
OPTIONS = (*[""] * 6, ", preserve_rng_state=False", ", times=2", ", times=3", ", context_fn=selective")


def draw(s: Scope) -> str:
    return f"{s.new()} = {s.pick(*NOISE, *NOISE, *OWN_NOISE, *LATE_NOISE).format(s.floating())}"


def module(s: Scope) -> str:
    return f"{s.new()} = noisy({s.floating()})"


def draw_into(s: Scope) -> str:
    """In place, into a new tensor that is read afterwards."""
    x = s.floating()
    how = s.pick("normal_()", "uniform_()", "bernoulli_(0.3)", "exponential_()", "random_(5)", "normal_(generator=own)")
    return f"{s.new()} = {x} * torch.empty_like({x}, requires_grad=False).{how}"


def again(s: Scope) -> str:
    """A checkpoint around a chain of expressions, of which some are checkpoints themselves."""
    text = f"{s.new()} = again(lambda t: {_chain(s, 't', 1)}, {s.floating()}{s.pick(*OPTIONS)})"
    if draws_after_saved(text):
        raise LookupError(text)
    return text


def draws_after_saved(text: str) -> bool:
    """Whether a selective checkpoint draws numbers after others that it saves.

    Eager (torch 2.13) gives a wrong gradient there, without a word: its second run does not draw what was saved, so it
    draws the rest from where the saved numbers came from, and these are not the numbers of the first run. foregrad
    refuses that. What is computed first stands last in the text.
    """
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call) and node.keywords]
    selective = [call for call in calls if any(keyword.arg == "context_fn" for keyword in call.keywords)]
    bodies = [ast.get_source_segment(text, call.args[0]) or "" for call in selective]
    later = [body.rpartition("torch.rand_like")[0] for body in bodies]
    others = [form.format("u") for form in NOISE if "torch.rand_like" not in form]
    return any(other in part for part in later for other in ["noisy(", *others])


def _chain(s: Scope, name: str, depth: int) -> str:
    """Nested expressions of one variable."""
    text = name
    for _ in range(s.rng.randint(1, 3)):
        chance = s.rng.random()
        if chance < 0.2 and depth < 3:
            inner = f"{name}{depth}"
            text = f"again(lambda {inner}: {_chain(s, inner, depth + 1)}, {text}{s.pick(*OPTIONS)})"
        elif chance < 0.3:
            text = f"noisy({text})"
        else:
            form = s.pick(*PLAIN) if chance > 0.65 else s.pick(*NOISE, *OWN_NOISE)
            text = f"(lambda u: {form.format('u')})({text})"
    return text


DRAWING: dict[Callable[[Scope], str], float] = {
    draw: 30, module: 6, draw_into: 8, again: 22, random_write: 2,
    pointwise: 12, binary: 12, matmul: 4, reduction: 5, convert: 1, create: 1, gather: 2,
    reshape: 3, permuted: 3, sliced: 3, resized: 1, several: 2, detached: 1,
    written: 4, masked: 1, view_write: 1, inner_gradient: 1, custom_function: 1, hook: 0.5,
}  # fmt: skip

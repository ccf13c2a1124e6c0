"""Statements that ask the data: branches, loops, numbers in Python, and results whose size the data decide."""

from __future__ import annotations

import math
from collections.abc import Callable

from tests.fuzz.draws import draw, draw_into, module
from tests.fuzz.scope import Scope
from tests.fuzz.statements import WRITERS, custom_function

#: Numbers that are made of a tensor, to be asked for.
REDUCED = (
    "{}.sum()",
    "{}.mean()",
    "{}.detach().sum()",
    "{}.norm()",
    "{}.detach().flatten()[0]",
    "{}.amax()",
    "{}.std()",
)
#: What a branch does with the tensor that it is about, without a change of its size.
WAYS = (
    *("{0} * 2", "{0}.sin()", "{0}.exp().clamp(max=3.0)", "{0} + {1}", "{0} * {1}", "{0}", "{0}.detach()", "-{0}"),
    *("{0}.clone().mul_(3)", "torch.nn.functional.dropout({0}, 0.5)", "{0}.cos() * torch.rand({0}.shape)"),
)
WRITES = ("{0}.mul_({1})", "{0}.add_({1})", "{0}.sin_()", "{0}.detach().mul_(2)", "{0}[..., :1] = 0.5", "pass")


def reduced(s: Scope, form: str = "") -> str:
    return (form or s.pick(*REDUCED)).format(s.floating())


def bound(s: Scope, number: str) -> str:
    """A number around which another lies for different data, so that a comparison goes both ways."""
    try:
        found = [float(eval(number, values)) for values in s.everywhere]
    except (RuntimeError, IndexError) as error:
        raise LookupError(number) from error
    found = [value for value in found if math.isfinite(value)]
    low, high = (min(found), max(found)) if found else (0.0, 0.0)
    return f"{s.pick((low + high) / 2, (2 * low + high) / 3, high + 1):.2f}"


def condition(s: Scope) -> str:
    """What a branch asks."""
    x, y = s.floating(), s.floating()
    number = reduced(s)
    limit = bound(s, number)
    forms = (
        *(f"{number} > {limit}", f"{number} > {limit}", f"{number}.item() > {limit}", f"bool({number} < {limit})"),
        *(f"not ({x} > {bound(s, f'{x}.detach().sum()')}).any()", f"({x} > -0.5).all()", f"torch.equal({x}, {y})"),
        *(f"torch.equal({x}, {x}.abs())", f"torch.allclose({x}, {y}.abs().sum())", f"{x}.argmax() == 1"),
        *(f"math.isfinite({x}.log().sum().item())", f"math.isnan({x}.log().mean().item())"),
        *(f"{limit} < {number}.item() <= {limit} + 0.3", f"int(({x} > 0).sum()) % 2", f"({x} > 0.3).sum() > 1"),
        *(f"({x} > 0.1).sum().item() == 2", f"len({x}[{x} > 0.2]) > 1", f"{number} < {reduced(s)}"),
        *(f"{number}.item() < {reduced(s)}.item()", f"{x}.tolist() > {y}.tolist()", f"round({number}.item()) % 2"),
        *(
            f"{x}.detach().relu().flatten()[-1]",
            f"({x} > 0).any() and {number} > {limit}",
            f"max({number}.item(), 0.1) > {limit}",
        ),
    )
    return s.pick(*forms)


def chosen(s: Scope) -> str:
    """One of two values."""
    x = s.floating()
    y = s.like(x)
    one, other = (s.pick(*WAYS).format(x, y) for _ in range(2))
    return f"{s.new()} = {one} if {condition(s)} else {other}"


def written_on_one_way(s: Scope) -> str:
    """Writes, to inputs too, that happen where the data say so."""
    x = s.floating()
    one = s.pick(*WRITES).format(x, s.like(x))
    asked = condition(s)
    if s.rng.random() < 0.5:
        return f"if {asked}: {one}"
    y = s.floating()
    return f"if {asked}:\n    {one}\nelse:\n    {s.pick(*WRITES).format(y, s.like(y))}"


def several_values(s: Scope) -> str:
    """Branches of several statements, one of which has a question of its own."""
    x = s.floating()
    new = s.new()
    inner = s.pick(*WAYS).format(new, "0.5")
    return (
        f"{new} = {x}\n"
        f"if {condition(s)}:\n    {new} = {s.pick(*WAYS).format(x, s.like(x))}\n"
        f"    if {new}.sum() > {bound(s, f'{x}.sum()')}: {new} = {inner}\n"
        f"else:\n    {new} = {s.pick(*WAYS).format(x, '2.0')}"
    )


def looped(s: Scope) -> str:
    x = s.floating()
    return f"{s.new()} = {s.pick('halved', 'grown')}({x}, {s.pick('0.2', '0.4', '0.7')})"


def item(s: Scope) -> str:
    """Numbers of Python's that go into ops."""
    x, number = s.floating(), reduced(s)
    limit = bound(s, number)
    forms = (
        *("{x} * {n}.item()", "{x} + ({n}.item() * 3 + 1)", "{x} / (abs({n}.item()) + 1)", "{x} - {n}.item() / 3"),
        *("{x} * round({n}.item(), 1)", "{x} * math.floor({n}.item())", "{x} * int({n}.item() * 2)"),
        *("{x} * max({n}.item(), 0.5)", "{x} + min({n}.item(), {x}.sum().item(), 1.0)", "{x} * ({n}.item() > {c})"),
        *("{x} * sum([{n}.item(), {x}.mean().item()])", "{x} * {x}.tolist().__repr__().count('-')"),
        *("torch.full((2,), {n}.item())", "torch.tensor([{n}.item(), 1.0])", "torch.full_like({x}, {n}.item())"),
        *("{x}.clamp(max={n}.item())", "{x} * float({n} > {c})", "{x} * (i if (i := {n}.item()) > {c} else i * i)"),
        *("{x}.flatten()[: int(({x} > 0).sum())]", "{x} * sorted([{n}.item(), 0.5, {x}.sum().item()])[1]"),
        *("{x} + divmod({n}.item(), 0.7)[1]", "{x} * {n}.item() ** 2", "{x} * len(f'{{{n}.item():.3f}}')"),
        *("{x} * torch.finfo({x}.dtype).eps * {n}.item()", "{x} * float({x}.detach().numpy().sum() > {c})"),
    )
    return f"{s.new()} = {s.pick(*forms).format(x=x, n=number, c=limit)}"


def selected(s: Scope) -> str:
    """Results whose size depends on the data."""
    x = s.floating(dims=1)
    limit = s.pick("0", "0.2", "0.5", "-0.3", "5", "-9")
    forms = (
        *("{0}[{0} > {1}]", "{0}[{0} > {1}]", "{0}.masked_select({0} > {1})", "{0}.flatten()[{0}.flatten() > {1}]"),
        *("({0} > {1}).nonzero()", "torch.where({0} > {1})[0]", "torch.argwhere({0} > {1})", "{0}[{0}.sum(-1) > {1}]"),
        *("({0} * 2).detach().round().unique()", "({0} * 2).detach().round().unique(return_counts=True)[1]"),
        *("{0}.detach().round().unique_consecutive()", "torch.bincount(({0}.detach().flatten() * 2).abs().long())"),
        *("{0}.repeat_interleave(({0}.detach().flatten()[:1] > {1}).long() + 1)", "{0}[..., {0}.flatten()[0] > {1}]"),
        *("{0}.flatten().repeat_interleave(({0}.detach().flatten() > {1}).long())", "{0}[({0} > {1}).nonzero()[:, 0]]"),
        *("{0}.index_select(0, torch.where({0}.flatten()[: {0}.shape[0]] > {1})[0])",),
    )
    return f"{s.new()} = {s.pick(*forms).format(x, limit)}"


def selected_and_written(s: Scope) -> str:
    x = s.floating(dims=1)
    limit = s.pick("0", "0.2", "0.5")
    new = s.new()
    forms = (
        *("{0}[{0} > {1}] *= 2", "{0}[{0} > {1}] = 0.3", "{0}[{0} > {1}] += {0}[{0} > {1}].sin()"),
        *("{2} = {0}[{0} > {1}]; {2}.mul_(2)", "{2} = {0} * 1; {2}[torch.where({2} > {1})] = 0.5"),
        *("{0}.detach()[{0} < {1}] = 1.0", "{0}.index_put_(torch.where({0} > {1}), torch.tensor(0.5))"),
        *("{2} = {0} * 1; {2}[{0} > {1}] = {0}.masked_select({0} > {1}) * 2",),
    )
    return s.pick(*forms).format(x, limit, new)


def asked_in_checkpoint(s: Scope) -> str:
    x = s.floating()
    number = s.pick("{}.sum()", "{}.mean()")
    limit = bound(s, number.format(x))
    way, other = (s.pick(*WAYS).format("t", "2.0") for _ in range(2))
    forms = (
        f"{way} if {number.format('t')} > {limit} else {other}",
        f"t[t > {limit}].exp()",
        f"t * {number.format('t')}.item()",
        f"halved(t, 0.4) * ({way})",
    )
    reentrant = f"torch.utils.checkpoint.checkpoint(lambda t: {s.pick(*forms)}, {x}, use_reentrant=True)"
    plain = f"again(lambda t: {s.pick(*forms)}, {x}{s.pick('', '', ', times=2', ', preserve_rng_state=False')})"
    return f"{s.new()} = {s.pick(plain, plain, reentrant)}"


def asked_in_function(s: Scope) -> str:
    return f"{s.new()} = {s.pick('Branches', 'Branches', 'Chooses')}.apply({s.floating()})"


def tried(s: Scope) -> str:
    """An op whose kernel raises for some data, and what is done then."""
    x, number = s.floating(), reduced(s)
    limit = bound(s, number)
    new = s.new()
    forms = (
        *(f"torch.linalg.cholesky(torch.eye(2) * ({number} - {limit}).double()).sum().float()",) * 2,
        f"torch.linalg.cholesky(torch.eye(2, dtype=torch.float64) * ({number}.item() - {limit})).sum().float()",
        f"torch.linalg.inv(torch.eye(2) * ({number} > {limit})).diagonal().sum()",
        f"torch.arange(3.0)[({number} > {limit}).long() * 5]",
        f"torch.arange(3.0).gather(0, ({number} > {limit}).long().view(1) * 5).sum()",
    )
    after = s.pick(f"{new} = {x} * 2", f"{x}.mul_(2); {new} = {x} + 1", f"{new} = torch.rand({x}.shape) * {x}")
    before = s.pick("", "", f"{x}.add_(0.25); ")
    return (
        f"try:\n    {before}{new} = {x} * {s.pick(*forms)}\n"
        f"    {new} = {new} if {new}.isfinite().all() else {x} - 1\n"
        f"except (RuntimeError, IndexError):\n    {after}"
    )


def early(s: Scope) -> str:
    """A return, or an error, where the data say so."""
    x, y = s.floating(), s.floating()
    end = s.pick(f"return {x} * 2", f"return {x}", f"return ({x}, {y})", "raise ValueError('this way')")
    return f"if {condition(s)}: {end}"


QUESTIONING: dict[Callable[[Scope], str], float] = {
    **{writer: weight * 0.5 for writer, weight in WRITERS.items()},
    chosen: 12, written_on_one_way: 8, several_values: 5, looped: 4, item: 10, selected: 8, selected_and_written: 4,
    asked_in_checkpoint: 3, asked_in_function: 1.5, early: 2.5, tried: 2,
    draw: 2, module: 1, draw_into: 1, custom_function: 1,
}  # fmt: skip

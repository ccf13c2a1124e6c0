"""The kinds of statement a random program is made of: a table of small writers.

A writer takes the `Scope` and gives a line of Python. It may give a line that eager PyTorch refuses; the
generator finds out by running it. It raises LookupError if no variable suits.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from tests.fuzz.scope import Scope, broadcasts
from tests.fuzz.views import detached, permuted, reinterpreted, reshape, resized, several, sliced, strided

# --- new values ---------------------------------------------------------------------------------------------


def pointwise(s: Scope) -> str:
    x = s.floating()
    form = s.pick(
        *(
            "{}.sin()",
            "{}.cos()",
            "{}.tanh()",
            "{}.sigmoid()",
            "{}.relu()",
            "{} * 2.0",
            "{} + 1",
            "-{}",
            "{}.square()",
        ),
        *("{}.exp().clamp(max=3.0)", "{}.abs()", "1.0 / ({}.abs() + 1)", "{}.clone()", "{}.contiguous()"),
    )
    return f"{s.new()} = {form.format(x)}"


def binary(s: Scope) -> str:
    x = s.floating()
    y = s.like(x)
    form = s.pick(
        *("{} + {}", "{} * {}", "{} - {}", "{} * {}", "{}.add({}, alpha=2)", "torch.mul({}, {})"),
        *("torch.where({0} > 0, {0}, {1})", "{} / ({} * 0.5 + 2)", "torch.lerp({0}, {0} * {1}, 0.3)"),
    )
    return f"{s.new()} = {form.format(x, y)}"


def matmul(s: Scope) -> str:
    x = s.tensor(lambda t: t.is_floating_point() and t.dim() in (2, 3))
    rows = s.size(x)[-1]
    dtype = s.values[x].dtype
    y = s.tensor(lambda t: t.dtype == dtype and t.dim() in (1, 2) and (t.shape[0] == rows or t.shape[-1] == rows))
    transposed = s.values[y].dim() == 2 and s.size(y)[0] != rows
    if s.values[x].dim() == 2 and s.rng.random() < 0.2:
        start = f"torch.ones((), dtype={x}.dtype)"
        return f"{s.new()} = torch.addmm({start}, {x}, {y}{'.t()' if transposed else ''})"
    return f"{s.new()} = torch.nn.functional.linear({x}, {y})" if transposed else f"{s.new()} = {x} @ {y}"


def reduction(s: Scope) -> str:
    """Without `prod`: eager picks the formula of its gradient by looking for zeros in the data."""
    x = s.floating(dims=1)
    d = s.dim(x)
    form = s.pick(
        *(
            "{0}.sum()",
            "{0}.mean()",
            "{0}.sum({1})",
            "{0}.mean({1}, keepdim=True)",
            "{0}.amax({1})",
            "{0}.cumsum({1})",
        ),
        *(
            "{0}.logsumexp({1})",
            "{0}.softmax({1})",
            "{0}.amin({1})",
            "{0}.max({1})[0]",
            "{0}.norm()",
            "{0}.sort({1})[0]",
        ),
    )
    return f"{s.new()} = {form.format(x, d)}"


def integer(s: Scope) -> str:
    x = s.floating(dims=1)
    form = s.pick("{0}.argmax({1})", "{0} > 0", "{0}.argsort({1})", "({0} * 4).int()")
    return f"{s.new()} = {form.format(x, s.dim(x))}"


def convert(s: Scope) -> str:
    x = s.tensor(lambda t: not t.is_complex())
    forms = ("double()", "float()", "to(torch.float64)", "clone()", f"type_as({s.floating()})")
    return f"{s.new()} = {x}.{s.pick(*forms)}"


def create(s: Scope) -> str:
    x = s.tensor()
    form = s.pick("torch.zeros_like({0})", "torch.ones({1})", "torch.full({1}, 0.5)", "torch.tensor([1.0, -2.0])")
    return f"{s.new()} = {form.format(x, tuple(s.size(x)))}"


def gather(s: Scope) -> str:
    x = s.floating(dims=1)
    d = s.dim(x)
    last = s.size(x)[d] - 1
    forms = (
        f"{x}.index_select({d}, torch.tensor([0, {last}, 0]))",
        f"torch.cat([{x}, {s.floating(dims=1)}], {d})",
        f"torch.stack([{x}, {s.like(x) if s.rng.random() < 0.3 else x}])",
        f"{x}[torch.tensor([{last if d == 0 else 0}, 0])]",
        f"{x}.flip({d})",
        f"torch.nn.functional.pad({x}, (1, 0))",
    )
    return f"{s.new()} = {s.pick(*forms)}"


def random_draw(s: Scope) -> str:
    x = s.floating()
    form = s.pick("torch.nn.functional.dropout({}, 0.5)", "{0} * torch.rand_like({0})", "torch.rand_like({})")
    return f"{s.new()} = {form.format(x)}"


# --- writes -------------------------------------------------------------------------------------------------


def written(s: Scope) -> str:
    x = s.floating()
    y = s.like(x)
    form = s.pick(
        *(
            "{}.mul_({})",
            "{}.add_({})",
            "{}.sub_({}, alpha=0.5)",
            "{0} += {1}",
            "{0} *= {1}",
            "{}.addcmul_({}, {y}, value=0.5)",
        ),
        *(
            "{}.sin_()",
            "{}.zero_()",
            "{}.fill_(0.5)",
            "{}.neg_()",
            "{}.sigmoid_()",
            "{}.clamp_(-0.5, 0.5)",
            "{}.relu_()",
        ),
    )
    if y[0] not in "-0123456789":
        form = s.pick(form, "{}.copy_({})", "{}.lerp_({}, 0.3)")
    return form.format(x, y, y=y if y.isidentifier() else x)


def masked(s: Scope) -> str:
    x = s.floating(dims=1)
    d = s.dim(x)
    last = s.size(x)[d] - 1
    value = s.pick("0.5", "2.0", s.floating())
    forms = (
        f"{x}[0] = {value}",
        f"{x}[..., {s.size(x)[-1] - 1}] = {value}",
        f"{x}[::2] = {value}",
        f"{x}[{x} > 0] = 0.25",
        f"{x}.masked_fill_({x} > 0, 0.5)",
        f"{x}[torch.tensor([0, {s.size(x)[0] - 1}])] = {value}",
        f"{x}.index_put_((torch.tensor([0]),), torch.tensor(0.5), accumulate=True)",
        f"{x}.index_fill_({d}, torch.tensor([{last}]), 0.5)",
        f"{x}.select({d}, {last}).mul_({value})",
        f"{x}.index_add_({d}, torch.tensor([0]), {x}.detach().narrow({d}, {last}, 1).clone())",
    )
    return s.pick(*forms)


def integer_write(s: Scope) -> str:
    x = s.tensor(lambda t: not t.is_floating_point() and not t.is_complex())
    return f"{x}.{s.pick('add_(1)', 'zero_()', 'mul_(2)', 'fill_(1)')}"


def view_write(s: Scope) -> str:
    """A write through a view that has no name."""
    x = s.floating(dims=1)
    view = s.pick("view(-1)", "t()", "detach()", "unsqueeze(0)", "diagonal()", f"transpose(0, {s.dim(x)})", "flatten()")
    return f"{x}.{view}.{s.pick('mul_(2.0)', 'add_(1.0)', 'sin_()', 'zero_()', f'copy_({s.floating()})')}"


def out_argument(s: Scope) -> str:
    out = s.floating()
    x = s.floating()
    forms = (
        f"torch.add({x}, {s.like(x)}, out={out})",
        f"torch.sin({x}, out={out})",
        f"torch.sum({x}, 0, out={out})",
    )
    return s.pick(*forms)


def random_write(s: Scope) -> str:
    return f"{s.floating()}.{s.pick('uniform_()', 'normal_()', 'bernoulli_()')}"


# --- state of a tensor --------------------------------------------------------------------------------------


def metadata(s: Scope) -> str:
    x = s.tensor()
    d = s.rng.randint(0, s.values[x].dim())
    return f"{x}.{s.pick('t_()', 'squeeze_()', f'unsqueeze_({d})', f'transpose_(0, {d})', 'transpose_(0, -1)')}"


def storage(s: Scope) -> str:
    """`resize_` only within the storage: what a larger one holds is undefined."""
    x = s.tensor(fits_its_storage)
    shorter = (max(s.size(x)[0] - 1, 1), *s.size(x)[1:]) if s.values[x].dim() else ()
    forms = (
        f"resize_({shorter})",
        f"resize_({shorter})",
        f"set_({s.floating()}.detach())",
        f"set_({s.tensor()})",
    )
    return f"{x}.{s.pick(*forms)}"


def fits_its_storage(t: torch.Tensor) -> bool:
    end = (t.storage_offset() + t.numel()) * t.element_size()
    return t.numel() > 0 and end <= t.untyped_storage().nbytes()


def data_write(s: Scope) -> str:
    x = s.floating()
    forms = (
        f"{x}.data.mul_(2.0)",
        f"{x}.data.add_(1.0)",
        f"{x}.data = {x}.data * 2",
        f"{x}.data = torch.zeros(3)",
    )
    return s.pick(*forms)


def flag(s: Scope) -> str:
    return f"{s.floating()}.requires_grad_({s.pick('', '', 'False')})"


def cut_off(s: Scope) -> str:
    return f"{s.floating()}.detach_()"


# --- autograd -----------------------------------------------------------------------------------------------


def inner_gradient(s: Scope) -> str:
    """Of a tensor with elements: the version of a gradient without any is private to the engine."""
    source = s.tensor(lambda t: t.requires_grad and t.numel() > 0)
    result = s.tensor(lambda t: t.requires_grad)
    options = s.pick("create_graph=True", "create_graph=True", "retain_graph=True")
    return f"{s.new()} = torch.autograd.grad({result}.sum(), {source}, {options})[0]"


def custom_function(s: Scope) -> str:
    x = s.floating()
    y = s.tensor(lambda t: t.dtype == s.values[x].dtype and broadcasts(t.shape, s.size(x)))
    product = f"SavedProduct.apply({x}, {y})[{s.pick(0, 1)}]"
    forms = (product, product, f"Tripled.apply({x})", f"Viewed.apply({x})", f"Written.apply({x})")
    return f"{s.new()} = {s.pick(*forms)}"


def hook(s: Scope) -> str:
    """Not on a view: on one made under no_grad, torch 2.13 crashes."""
    x = s.tensor(lambda t: t.requires_grad and not t._is_view())
    return f"{x}.register_hook(lambda gradient: gradient * 2)"


def checkpointed(s: Scope) -> str:
    inner = "lambda t: t.sin().exp() * t"
    return f"{s.new()} = torch.utils.checkpoint.checkpoint({inner}, {s.floating()}, use_reentrant=False)"


# --- the table: how often each is tried ---------------------------------------------------------------------

WRITERS: dict[Callable[[Scope], str], float] = {
    pointwise: 13, binary: 15, matmul: 4, reduction: 6, integer: 1.5, convert: 1.5, create: 2.5,
    gather: 4, random_draw: 0.6,
    reshape: 6, permuted: 5, sliced: 8, resized: 4, several: 4, strided: 2, reinterpreted: 1, detached: 3,
    written: 20, masked: 7, integer_write: 1, view_write: 5, out_argument: 1.5, random_write: 0.3,
    metadata: 3, storage: 1, data_write: 1, flag: 0.7, cut_off: 0.7,
    inner_gradient: 1.2, custom_function: 1.5, hook: 0.5, checkpointed: 0.4,
}  # fmt: skip

WRITES = {"written", "masked", "integer_write", "view_write", "out_argument", "random_write", "data_write"}

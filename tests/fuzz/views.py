"""Writers of statements that make views (see `statements.py`)."""

from __future__ import annotations

from tests.fuzz.scope import Scope


def reshape(s: Scope) -> str:
    x = s.tensor()
    count = s.values[x].numel()
    sizes = [(-1,), (count,), (1, count), *((n, count // n) for n in (2, 3, 4) if count % n == 0)]
    return f"{s.new()} = {x}.{s.pick('view', 'view', 'reshape')}{s.rng.choice(sizes)}"


def permuted(s: Scope) -> str:
    x = s.tensor(lambda t: t.dim() >= 1)
    order = list(range(s.values[x].dim()))
    s.rng.shuffle(order)
    forms = ("t()", f"transpose(0, {s.dim(x)})", f"permute({', '.join(map(str, order))})", "movedim(0, -1)")
    return f"{s.new()} = {x}.{s.pick(*forms)}"


def sliced(s: Scope) -> str:
    x = s.tensor(lambda t: t.dim() >= 1)
    d = s.dim(x)
    size = s.size(x)[d]
    at = s.rng.randrange(max(size, 1))
    lead = ":, " * d
    forms = (
        f"[{lead}{at}]",
        f".select({d}, {at - size})",
        f"[{lead}{at}:]",
        f"[{lead}:{at + 1}]",
        f"[{lead}::2]",
        f"[..., {min(at, s.size(x)[-1] - 1)}]",
        f".narrow({d}, {at}, {s.rng.randint(1, max(size - at, 1))})",
        f".diagonal({s.pick('', 'offset=1', 'offset=-1')})",
    )
    return f"{s.new()} = {x}{s.pick(*forms)}"


def resized(s: Scope) -> str:
    x = s.tensor()
    d = s.rng.randint(0, s.values[x].dim())
    expanded = ", ".join("2" if n == 1 else "-1" for n in s.size(x))
    forms = (f"unsqueeze({d})", "squeeze()", f"squeeze({d})", f"expand(2, {expanded})", f"expand({expanded})")
    return f"{s.new()} = {x}.{s.pick(*forms, 'flatten()', 'ravel()', 'view_as(' + x + ')')}"


def several(s: Scope) -> str:
    x = s.tensor(lambda t: t.dim() >= 1)
    d = s.dim(x)
    size = s.size(x)[d]
    if size == 0:
        raise LookupError
    forms = ((f"unbind({d})", size), (f"split(1, {d})", size), (f"chunk(2, {d})", min(size, 2)))
    if size >= 3:
        forms += ((f"split([1, {size - 1}], {d})", 2), (f"tensor_split(2, {d})", 2))
    form, count = s.pick(*forms)
    keep = s.rng.randrange(count)
    return f"{s.new()} = {x}.{form}[{keep}]"


def strided(s: Scope) -> str:
    x = s.tensor(lambda t: t.numel() >= 4)
    d = s.dim(x)
    size = s.size(x)[d]
    forms = (
        f".unfold({d}, {min(2, size)}, 1)",
        ".as_strided((2, 2), (2, 1))",
        f".as_strided((3,), (1,), {s.values[x].storage_offset()})",
        ".as_strided((2, 2), (1, 1))",
    )
    return f"{s.new()} = {x}{s.pick(*forms)}"


def reinterpreted(s: Scope) -> str:
    x = s.tensor()
    if s.values[x].is_complex():
        form = s.pick("torch.view_as_real({})", "{}.real", "{}.imag", "{}.conj()", "{}.abs()")
        return f"{s.new()} = {form.format(x)}"
    forms = (
        f"torch.view_as_complex({x})",
        f"torch.complex({x}, {x})",
        f"{x}.view(torch.int32)",
        f"{x}.view(torch.float32)",
    )
    return f"{s.new()} = {s.pick(*forms)}"


def detached(s: Scope) -> str:
    return f"{s.new()} = {s.tensor()}.{s.pick('detach()', 'detach()', 'data')}"

"""Code: the Python that Inductor writes to call its kernels, as a function of our own.

    def call(args):
        arg0, arg1 = args
        args.clear()
        buf0 = empty_strided_cpu((32, 128), (128, 1), torch.float32)
        cpp_fused_add_0(arg0, arg1, buf0)
        return (buf0,)

Inductor's module also imports the compiler and holds the C++ of the kernels; the function needs neither, and can be
kept in a file beside the kernels as they were built.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from foregrad.core.generated import load_source

_METHOD = re.compile(r"^    def call\(self, args\):\n((?:        .*\n|\s*\n)+)", re.MULTILINE)
_EXTERN = re.compile(r"\bextern_kernels\.(\w+)\b")


def code_of(
    text: str, call: Callable[[list[Any]], Any], instead: Mapping[str, Any] | None = None
) -> Callable[[list[Any]], Any]:
    """The function that a module of Inductor's defines, on its own; as it is, where it needs more of its module. It
    calls others `instead` of some functions, which are given as Inductor writes them."""
    found = _METHOD.search(text)
    if found is None or re.search(r"\bself\b", found[1]):
        return call
    scope: dict[str, Any] = dict(call.__globals__)
    kernels = scope.get("extern_kernels")
    scope |= {f"extern_{name}": getattr(kernels, name) for name in _EXTERN.findall(found[1])}
    body = textwrap.dedent(found[1])
    for place, (name, other) in enumerate((instead or {}).items()):
        body = body.replace(f"{name}(", f"instead_{place}(")
        scope[f"instead_{place}"] = other
    body = _EXTERN.sub(r"extern_\1", body)
    return _loaded(f"def call(args):\n{textwrap.indent(body, '    ')}", scope)


def _loaded(text: str, scope: dict[str, Any]) -> Callable[[list[Any]], Any]:
    return load_source(text, {name: scope[name] for name in names_in(text) if name in scope}, "call")


def names_in(text: str) -> list[str]:
    """Names that a function takes from outside, and names of attributes."""
    found: dict[str, None] = {}
    codes = [inner for inner in compile(text, "<text>", "exec").co_consts if isinstance(inner, CodeType)]
    while codes:
        code = codes.pop()
        found.update(dict.fromkeys(code.co_names))
        codes += [inner for inner in code.co_consts if isinstance(inner, CodeType)]
    return list(found)

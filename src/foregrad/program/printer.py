"""The listing: a program as text. One value a line, its type at the right, the user's line above.

program step
  inputs
    param  fc.weight  f32[2, 3]
    input  x          f32[4, 3]
    ...
  forward
    # model.py:12  return self.fc(x).relu()   [fc]
    addmm = aten.addmm(fc_bias, x, t)                      f32[4, 2]
"""

from __future__ import annotations

import linecache
import operator
import os
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from foregrad.core.signature import Input, Output, Signature
from foregrad.core.spec import Spec, dtype_text
from foregrad.functionalize.pure_variants import Pure
from foregrad.functionalize.redraw import Redraw
from foregrad.program.recompute_marks import mark_text
from foregrad.record.ops import Origin
from foregrad.torch_private.ops import OpOverload, overload_name, schema_of

_COLUMN = 56
PHASES = ("forward", "backward", "backward of the backward")


def listing(name: str, graph: fx.Graph, signature: Signature, notes: Mapping[str, str]) -> str:
    """The whole program as text that can be compared: no addresses, no times. A note stands above the op it names."""
    lines = [f"program {name}", "  inputs", *_table(signature.inputs)]
    phase, above = -1, ""
    for node in graph.nodes:
        if node.op not in ("call_function", "get_attr"):
            continue
        if node.meta.get("phase", 0) != phase and node.op == "call_function":
            phase, above = node.meta.get("phase", 0), ""
            lines.append(f"  {PHASES[min(phase, 2)]}")
        if node.name in notes:
            above = ""
            lines.append(f"    -- {notes[node.name]}")
        origin = _origin_text(node.meta.get("origin"))
        if origin != above and node.op == "call_function":
            above = origin
            if origin:
                lines.append(f"    # {origin}")
        lines.append("    " + _typed(_node_text(node), node.meta.get("spec"), mark=mark_text(node)))
    results: Any = graph.output_node().args[0]
    names = [r.name if isinstance(r, fx.Node) else "None" for r in results]
    lines += ["  outputs", *_table(signature.outputs, names)]
    return "\n".join(lines) + "\n"


def _table(values: Sequence[Input | Output], names: list[str] | None = None) -> list[str]:
    """Role, name and type of each value, in columns as wide as they need to be."""
    roles = max((len(v.role) for v in values), default=0)
    texts = [f"{v.role:<{roles}}  {v.name}" + (f" = {names[i]}" if names else "") for i, v in enumerate(values)]
    width = min(max(map(len, texts), default=0), _COLUMN)
    return ["    " + _typed(text, value.spec, width) for text, value in zip(texts, values, strict=True)]


def _typed(text: str, spec: Spec | None, width: int = _COLUMN, mark: str = "") -> str:
    typed = f"{text:<{width}}  {spec}" if spec is not None else text
    return f"{typed}  ({mark})" if mark else typed


def _node_text(node: fx.Node) -> str:
    if node.op == "get_attr":
        return f"{node.name} = {'generator' if 'generator' in node.meta else 'constant'}"
    if node.target is operator.getitem:
        return f"{node.name} = {_value(node.args[0])}[{node.args[1]}]"
    args = [_value(a) for a in node.args] + [f"{k}={_value(v)}" for k, v in node.kwargs.items()]
    return f"{node.name} = {target_text(node.target)}({', '.join(args)})"


def target_text(target: Any) -> str:
    """An op as `aten.mul`, with its overload only where it is not the usual one."""
    if isinstance(target, Pure):
        return f"pure({target_text(target.op)})"
    if isinstance(target, Redraw):
        return f"replay({target_text(target.op)})"
    if not isinstance(target, OpOverload):
        return getattr(target, "__name__", str(target))
    name = schema_of(target).name.replace("::", ".")
    return name if overload_name(target) in ("default", "Tensor", "") else f"{name}.{overload_name(target)}"


def _value(value: Any) -> str:
    if isinstance(value, fx.Node):
        return value.name
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_value(v) for v in value) + "]"
    if isinstance(value, torch.dtype):
        return dtype_text(value)
    return str(value).removeprefix("torch.") if isinstance(value, (torch.layout, torch.memory_format)) else repr(value)


def _origin_text(origin: Origin | str | None) -> str:
    if isinstance(origin, str):
        return origin  # of a program that was parsed
    if origin is None or origin.code is None:
        return ""
    line = linecache.getline(origin.file, origin.line).strip()
    text = f"{os.path.basename(origin.file)}:{origin.line}"
    text += f"  {line}" if line else ""
    return text + (f"  [{origin.module}]" if origin.module else "")

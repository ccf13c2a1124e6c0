"""Scalars: numbers that a kernel takes are read once, before its loops.

    void kernel(const double* in_ptr0, float* out_ptr0) {    void kernel(const double* in_ptr0, float* out_ptr0) {
        for (...) {                                              const double number_0 = in_ptr0[0];
            auto tmp0 = in_ptr0[static_cast<int64_t>(0L)];  ──▶  for (...) {
            auto tmp1 = c10::convert<float>(tmp0);                   auto tmp0 = number_0;

Inductor reads them for each vector, and compilers leave it so, since for all that they know a vector that is stored
might be one of the numbers: with a learning rate and the like that is a good part of the loop of an optimizer.
"""

from __future__ import annotations

import re

_SIGNATURE = re.compile(r"\bkernel\(([^)]*)\)\s*\{")
_READ = "[static_cast<int64_t>(0L)]"


def read_once(source: str) -> str:
    """The same kernel; as it is, if it writes numbers of that kind."""
    found = _SIGNATURE.search(source)
    if found is None:
        return source
    parameters = [one.strip() for one in found[1].split(",")]
    if any(one.startswith("double*") for one in parameters):
        return source
    head, body = source[: found.end()], source[found.end() :]
    lines = []
    for place, name in enumerate(one.removeprefix("const double* ") for one in parameters):
        uses = re.findall(rf"\b{name}\b(.{{{len(_READ)}}})", body, re.DOTALL) if name != parameters[place] else []
        if uses and all(use == _READ for use in uses):
            body = re.sub(rf"\b{name}\b{re.escape(_READ)}", f"number_{place}", body)
            lines.append(f"\n    const double number_{place} = {name}[0];")
    return head + "".join(lines) + body

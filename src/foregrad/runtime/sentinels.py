"""Sentinels: what a call returns whose guards do not hold, and marks in generated code."""

from __future__ import annotations

#: The result of a call that is not for these arguments.
MISS = object()

#: What checks everything that the function read in Python, in a generated call.
PYTHON = "python"

#: After the check of all tensors, before their names.
TENSORS = "tensors: "

#: After the check of a gradient that the program replaces without reading it: a program that was recorded with one does
#: as well without.
REPLACED = "# it is replaced"

#: After the check that an attribute of a module holds a tensor which is read elsewhere, as an LSTM's list of weights
#: does: modules that are made from a file have no such attributes.
KEPT_TOO = "# it is kept there too"

"""Sentinels: what a call returns whose guards do not hold, and what some of its checks are about."""

from __future__ import annotations

#: The result of a call that is not for these arguments.
MISS = object()

#: What checks everything that the function read in Python, in a generated call.
PYTHON = "python"

#: A gradient that the program replaces without reading it: a program that was recorded with one does as well without.
REPLACED = "replaced"

#: An attribute of a module that holds a tensor which is read elsewhere, as an LSTM's list of weights does: modules that
#: are made from a file have no such attributes.
KEPT_TOO = "kept too"

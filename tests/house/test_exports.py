"""The public surface, frozen: a change here is a change of the contract and of the changelog."""

from types import ModuleType

import foregrad as fg

PUBLIC = [
    "BackwardError",
    "Cache",
    "CannotKeep",
    "CaptureError",
    "CorruptArtifact",
    "FallbackWarning",
    "ForegradError",
    "GuardError",
    "Program",
    "ProgramError",
    "StaleArtifact",
    "UntrustedArtifact",
    "capture",
    "compile",
    "configure",
    "explain",
    "load",
    "python",
    "step",
]


def test_the_public_names_are_these():
    assert sorted(fg.__all__) == PUBLIC


def test_every_public_name_exists_and_says_what_it_is():
    undocumented = [name for name in PUBLIC if not getattr(fg, name).__doc__]
    assert undocumented == []


def test_nothing_else_looks_public():
    others = {name for name, value in vars(fg).items() if not isinstance(value, ModuleType)}
    assert {name for name in others if not name.startswith("_")} - set(PUBLIC) == {"annotations"} & others


def test_errors_have_one_root():
    errors = [getattr(fg, name) for name in PUBLIC if name.endswith(("Error", "Keep", "Artifact"))]
    assert all(issubclass(error, fg.ForegradError) for error in errors)

"""Everything foregrad raises on its own account.

ForegradError
├── CaptureError      the function cannot be recorded faithfully; names the user's line
├── GuardError        called with inputs that a fixed program was not captured for
├── ProgramError      a program breaks one of its own rules
├── BackwardError     a backward needs a value that this program did not keep
├── CannotKeep        a program cannot be kept in a file; says what in it
├── StaleArtifact     a saved program does not fit the state, or the machine, that it is loaded for
├── CorruptArtifact   a saved program is damaged, cut short or made up
└── UntrustedArtifact a saved program is not signed by anyone who is trusted

And what it warns of, by a category of its own: FallbackWarning, a part of a program is not compiled.
"""

from __future__ import annotations


class ForegradError(Exception):
    """Base of every error that foregrad raises itself; errors of the user's code pass through unchanged."""


class CaptureError(ForegradError):
    """The function does something that no fixed program can do; says what, where, and what to do instead."""

    leaves_no_trace = False  # whether what the function had done by then was undone, so that it can run once more


class CreatesState(CaptureError):
    """A step that may be left out creates state: this call runs the function itself, so that nobody sees this."""


class GuardError(ForegradError):
    """A program was called with inputs that it was not captured for; lists every mismatch."""


class ProgramError(ForegradError):
    """A program is not well formed; lists every rule that it breaks."""


class BackwardError(ForegradError):
    """A backward of an unusual kind needs a value of the forward that was not kept for it."""


class CannotKeep(ForegradError):
    """A program refers to something that no file can hold; says to what."""


class StaleArtifact(ForegradError):
    """A saved program does not fit what it is loaded for; lists every mismatch."""


class CorruptArtifact(ForegradError):
    """A saved program is not as it was written; says what is wrong and where. Nothing of it was used."""


class UntrustedArtifact(ForegradError):
    """A saved program carries no signature that is accepted here; says why. Nothing of it was used."""


class FallbackWarning(UserWarning):
    """A part of a program could not be compiled and runs op by op: says which ops, why, and at which line."""

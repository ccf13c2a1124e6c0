"""Everything foregrad raises on its own account.

ForegradError
├── CaptureError      the function cannot be recorded faithfully; names the user's line
├── GuardError        called with inputs that a fixed program was not captured for
├── ProgramError      a program breaks one of its own rules
├── BackwardError     a backward needs a value that this program did not keep
├── CannotKeep        a program cannot be kept in a file; says what in it
├── StaleArtifact     a file does not fit the state or the machine that it is loaded for; lists all that differs
├── CorruptArtifact   a file is damaged, or none of ours
└── UntrustedArtifact a file is not signed by someone who is trusted
"""

from __future__ import annotations


class ForegradError(Exception):
    """Base of every error that foregrad raises itself; errors of the user's code pass through unchanged."""


class CaptureError(ForegradError):
    """The function does something that no fixed program can do; says what, where, and what to do instead."""


class GuardError(ForegradError):
    """A program was called with inputs that it was not captured for; lists every mismatch."""


class ProgramError(ForegradError):
    """A program is not well formed; lists every rule that it breaks."""


class BackwardError(ForegradError):
    """A backward of an unusual kind needs a value of the forward that was not kept for it."""


class CannotKeep(ForegradError):
    """A program refers to something that no file can hold; says to what."""


class StaleArtifact(ForegradError):
    """A file was made for other state, another torch or another machine; lists every mismatch."""


class CorruptArtifact(ForegradError):
    """A file is damaged, cut off, or not one of ours; nothing of it was run."""


class UntrustedArtifact(ForegradError):
    """A file is not signed, or not by a key that is trusted; nothing of it was run."""

"""Children: programs that this process starts, and that end with it, however it ends.

A child is a process group of its own, under a shell. The shell holds the read end of a pipe whose write end nobody has
but this process: when it is gone, killed or not, the read returns, and the group is killed with all that the program
has started. (`PR_SET_PDEATHSIG` would follow the thread that starts a program, and is not passed on to the next.)
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Sequence
from typing import Any

from foregrad.process.forks import in_child, lock

_SHELL = "/bin/sh"
_SCRIPT = """
exec 3<&0 0</dev/null
(read -r _ <&3; kill -9 0) >/dev/null 2>&1 &
watcher=$!
"$@" 3<&-
status=$?
{ kill -9 $watcher; wait $watcher; } 2>/dev/null
exit $status
"""


class Child(subprocess.Popen[Any]):
    """A program that ends with this process. It reads no input; its status, where a signal ended it, is 128 and the
    signal's number, as a shell says it. Signals go to all of its group."""

    def __init__(self, command: Sequence[str], **options: Any) -> None:
        env = options.get("env") or os.environ
        if shutil.which(command[0], path=env.get("PATH")) is None:
            raise FileNotFoundError(f"there is no program {command[0]}")
        super().__init__([_SHELL, "-c", _SCRIPT, "sh", *command], stdin=_life.end(), process_group=0, **options)

    def send_signal(self, sig: int) -> None:
        if self.poll() is None:
            os.killpg(self.pid, sig)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run(
    command: Sequence[str],
    *,
    capture_output: bool = False,
    check: bool = False,
    timeout: float | None = None,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """`subprocess.run` of a child."""
    if capture_output:
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Child(command, **options) as child:
        try:
            said, errors = child.communicate(timeout=timeout)
        except BaseException:
            child.kill()
            raise
    if check and child.returncode:
        raise subprocess.CalledProcessError(child.returncode, command, said, errors)
    return subprocess.CompletedProcess(command, child.returncode, said, errors)


def check_output(command: Sequence[str], **options: Any) -> Any:
    """`subprocess.check_output` of a child."""
    return run(command, stdout=subprocess.PIPE, check=True, **options).stdout


def check_call(command: Sequence[str], **options: Any) -> int:
    """`subprocess.check_call` of a child."""
    return run(command, check=True, **options).returncode


class _Life:
    """A pipe that ends with this process. A fork has one of its own: it must not keep that of its parent open."""

    def __init__(self) -> None:
        self._lock = lock()
        self._ends: tuple[int, int] | None = None
        in_child(self._forked)

    def end(self) -> int:
        """The end to read from."""
        with self._lock:
            if self._ends is None:
                self._ends = os.pipe()
            return self._ends[0]

    def _forked(self) -> None:
        if self._ends is not None:
            for end in self._ends:
                os.close(end)
            self._ends = None


_life = _Life()

"""Builds: runs of the C++ compiler. Each makes a whole file or none, an interrupt stops those under way, and none goes
on when this process is gone."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from foregrad.process.atomic_write import made_beside
from foregrad.process.children import Child
from foregrad.process.forks import lock
from foregrad.torch_private.cpp_builds import BUILD_FOLDER
from foregrad.torch_private.inductor import forget_unfinished_kernels

_PATIENCE_SECONDS = 2.0


class Builds:
    """The runs of this process. A compiler is a process group of its own: what it has started ends with it."""

    def __init__(self) -> None:
        self._lock = lock()
        self._running: set[Child] = set()
        self._is_stopped = False

    def run(self, command: list[str], folder: Path) -> tuple[int, str]:
        """Run a compiler in a folder: its status, and what it said. Its file gets its name when it is finished."""
        place = command.index("-o") + 1
        final = folder / command[place]
        try:
            with made_beside(final) as unfinished:
                # -w: warnings about torch's headers
                status, said = self._run([*command[:place], str(unfinished), *command[place + 1 :], "-w"], folder)
                if status:
                    unfinished.unlink(missing_ok=True)
        finally:
            if not final.exists() and folder.name.endswith(BUILD_FOLDER):
                shutil.rmtree(folder, ignore_errors=True)
        return status, said

    def _run(self, command: list[str], folder: Path) -> tuple[int, str]:
        with self._lock:
            if self._is_stopped:
                return 1, "interrupted"
            process = Child(
                command,
                cwd=folder,
                env=os.environ | {"TMPDIR": str(folder), "LC_ALL": "C"},  # what it says is looked at
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
            )
            self._running.add(process)
        try:
            said, _ = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
            _end(process)
        return process.returncode, said

    @contextmanager
    def stopped(self) -> Iterator[None]:
        """End what runs; in the block nothing new is begun."""
        with self._lock:
            self._is_stopped = True
            running = list(self._running)
        try:
            for process in running:
                process.terminate()
            yield
        finally:
            self._is_stopped = False


builds = Builds()


@contextmanager
def stopped_by_interrupts() -> Iterator[None]:
    """When the block is interrupted, by Ctrl-C for one, so are all builds, and what waits for them is forgotten."""
    try:
        yield
    except Exception:
        raise
    except BaseException:
        with builds.stopped():
            forget_unfinished_kernels()
        raise


def _end(process: Child) -> None:
    if process.poll() is not None:
        return
    process.terminate()
    try:
        process.wait(_PATIENCE_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()

"""Builds that are killed in the middle: `python -m tests.keep.kills --inductor`.

A process compiles a small model with "inductor" and is killed, it alone, at a random time. Two seconds later nothing
that it has started may be left, and the next process builds the model in the folders that it has left. How long that
takes is printed beside builds in fresh folders, with CPU seconds, which depend less on what else the machine does. What
fails is a process that is left over, or a wrong result.
"""

from __future__ import annotations

import argparse
import os
import random
import resource
import shutil
import signal
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

import foregrad as fg
from foregrad.backends import toolchain
from tests.keep.claimants import fork

#: In the environment of all that a build starts.
MARK = "FOREGRAD_BUILD_KILLS"
#: How often a build in fresh folders is timed, too.
CLEAN_EVERY = 3
PATIENCE_SECONDS = 2.0


def run(options: argparse.Namespace) -> int:
    import torch._inductor.compile_fx  # once, here: each build is a fork
    import torch._inductor.cpp_builder

    torch.set_num_threads(1)
    dice = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        rounds = Rounds(Path(folder))
        os.waitpid(fork(lambda: copy_known(rounds.folder / "known" / "toolchain")), 0)
        rounds.clean()  # and precompiled headers, where there were none
        clean = [rounds.clean() for _ in range(2)]
        after, gone = [], []
        for number in range(options.kills):
            if number % CLEAN_EVERY == CLEAN_EVERY - 1:
                clean.append(rounds.clean())
            moment = dice.uniform(0.0, statistics.median(one.wall for one in clean))
            waited, build = rounds.killed(moment)
            gone.append(waited)
            after.append(build)
            print(
                f"kill {number + 1}, after {moment:.1f} s: all gone {waited:.2f} s later, built by the next in {build}"
            )
            sys.stdout.flush()
    return report(rounds, clean, after, gone)


def report(rounds: Rounds, clean: list[Build], after: list[Build], gone: list[float]) -> int:
    print(f"{len(after)} kills; what was started is gone after {max(gone):.2f} s at most")
    for kind in ("wall", "cpu"):
        usual, times = ([getattr(one, kind) for one in each] for each in (clean, after))
        middle = statistics.median(usual)
        print(
            f"{kind}: a clean build takes {middle:.1f} s, the worst {max(usual) / middle:.2f} times that; the next "
            f"process after a kill {statistics.median(times) / middle:.2f}, the worst {max(times) / middle:.2f}"
        )
    for wrong in rounds.wrong:
        print(f"WRONG: {wrong}")
    print("WRONG" if rounds.wrong else "fine")
    return 1 if rounds.wrong else 0


@dataclass(frozen=True)
class Build:
    """Seconds of a build; those of the CPU are of the compilers, too."""

    wall: float
    cpu: float

    def __str__(self) -> str:
        return f"{self.wall:.1f} s (CPU {self.cpu:.1f})"


class Rounds:
    """Builds of one model, each in folders of its own or in those that a killed one has left."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.wrong: list[str] = []
        self.count = 0

    def clean(self) -> Build:
        """A build in fresh folders."""
        return self._finish(self._fresh())

    def killed(self, moment: float) -> tuple[float, Build]:
        """Kill a build: the seconds until nothing of it runs any more, and the build that follows."""
        place = self._fresh()
        process, mark = self._start(place)
        time.sleep(moment)
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        began = time.monotonic()
        while (left := marked(mark)) and time.monotonic() - began < PATIENCE_SECONDS:
            time.sleep(0.01)
        if left:
            self.wrong.append(f"{PATIENCE_SECONDS} s after a kill these run: {left}")
        return time.monotonic() - began, self._finish(place)

    def _fresh(self) -> Path:
        for library in self.folder.glob("known/code-2/library-*"):
            library.unlink()
        for old in self.folder.glob("round-*"):
            shutil.rmtree(old)
        self.count += 1
        place = self.folder / f"round-{self.count}"
        place.mkdir()
        return place

    def _finish(self, place: Path) -> Build:
        began, used = time.monotonic(), cpu_of_children()
        process, _ = self._start(place)
        code = os.waitstatus_to_exitcode(os.waitpid(process, 0)[1])
        if code:
            self.wrong.append(f"a build has ended with {code}")
        return Build(time.monotonic() - began, cpu_of_children() - used)

    def _start(self, place: Path) -> tuple[int, str]:
        mark = f"{os.getpid()}-{time.monotonic_ns()}"

        def work() -> None:
            os.environ |= {MARK: mark, "FOREGRAD_CACHE_DIR": str(self.folder / "known"), "TMPDIR": str(place)}
            tempfile.tempdir = str(place)
            build(place / "programs")

        return fork(work), mark


def copy_known(folder: Path) -> None:
    """What this user's cache knows about the compiler, and where precompiled headers are."""
    known = toolchain.prepare()
    folder.mkdir(parents=True)
    shutil.copy(known.file, folder)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(64), nn.Linear(64, 256), nn.Linear(256, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.down(torch.nn.functional.gelu(self.up(self.norm(x))))).square().mean()


def build(cache: Path) -> None:
    """A first step, beside eager."""
    torch.manual_seed(0)
    net, x = Net(), torch.randn(512, 64)
    net(x).backward()
    expected = [p.grad for p in net.parameters()]
    net.zero_grad(set_to_none=True)
    compiled = fg.compile(net, backend="inductor", cache=str(cache), progress=False)
    compiled(x).backward()
    torch.testing.assert_close([p.grad for p in net.parameters()], expected)
    if fg.explain(compiled).explained[0].fallbacks:
        raise AssertionError("a part was not compiled")


def cpu_of_children() -> float:
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


def marked(mark: str) -> list[str]:
    """What runs with a mark in its environment."""
    return [command(file.parent) for file in Path("/proc").glob("[0-9]*/environ") if mark in read(file)]


def command(process: Path) -> str:
    return f"{process.name} {read(process / 'cmdline')[:80]}"


def read(file: Path) -> str:
    try:
        return file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:  # it has ended, or is not ours
        return ""


if __name__ == "__main__":
    sys.exit("python -m tests.keep.kills --inductor")

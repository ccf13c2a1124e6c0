"""Two processes that want the same program at once, beside one that is alone.

python benchmarks/two_at_once.py [--workload gpt] [--rounds 3] [--fresh-toolchain] [--processes 2]

Every round has folders of its own, and nothing of the program is in them. What is known about the C++ compiler is
known, unless --fresh-toolchain is given. Prints wall seconds from after `import torch` to the end of the first training
step: of the one alone, of each of the others, and how much longer the slowest of them took. CPU seconds are those of
all processes together, compilers included: they say what was done twice, on a machine that others use as well.
"""

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--workload", default="gpt")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--fresh-toolchain", action="store_true", help="nothing is known about the compiler, either")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        known = None if options.fresh_toolchain else Path(folder) / "known"
        if known is not None:
            steps(known, "mlp-wide", 1)  # and the precompiled headers stay where they are
        rounds = []
        for number in range(options.rounds):
            alone = steps(copied(known, Path(folder) / f"alone-{number}"), options.workload, 1)
            together = steps(copied(known, Path(folder) / f"together-{number}"), options.workload, options.processes)
            rounds.append((alone, together))
            print(f"round {number + 1}: alone {alone}, {options.processes} at once {together}", flush=True)
    wall, cpu = ([(one.of(kind), more.of(kind)) for one, more in rounds] for kind in ("wall", "cpu"))
    print(f"{options.workload}, {options.processes} at once against one alone, medians of {options.rounds}:")
    for kind, figures in (("the slowest, wall", wall), ("all together, CPU", cpu)):
        one, more = (statistics.median(each) for each in zip(*figures, strict=True))
        print(f"  {kind}: {more:.1f} s against {one:.1f} s, {more / one:.2f} times")


@dataclass(frozen=True)
class Steps:
    """Wall seconds of each process, CPU seconds of all."""

    walls: list[float]
    cpu: float

    def of(self, kind: str) -> float:
        return self.cpu if kind == "cpu" else max(self.walls)

    def __str__(self) -> str:
        return f"{', '.join(f'{seconds:.1f}' for seconds in self.walls)} s (CPU {self.cpu:.1f})"


def copied(known: Path | None, folder: Path) -> Path:
    """A folder for a round, with what is known about the compiler."""
    if known is not None:
        shutil.copytree(known / "toolchain", folder / "toolchain")
    return folder


def steps(folder: Path, workload: str, processes: int) -> Steps:
    """First steps in so many processes at once, with one cache."""
    (folder / "temporary").mkdir(parents=True, exist_ok=True)
    environment = {name: value for name, value in os.environ.items() if not name.startswith("FOREGRAD_CACHE")}
    environment |= {"FOREGRAD_CACHE_DIR": str(folder), "TMPDIR": str(folder / "temporary")}
    command = [sys.executable, str(HERE / "first_step.py"), workload, "foregrad"]
    used = cpu_of_children()
    begun = [subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    said = [process.communicate()[0] for process in begun]
    if any(process.returncode for process in begun):
        raise SystemExit("a first step has failed")
    return Steps([json.loads(text.splitlines()[-1])["wall"] for text in said], cpu_of_children() - used)


def cpu_of_children() -> float:
    return sum(resource.getrusage(resource.RUSAGE_CHILDREN)[:2])


if __name__ == "__main__":
    main()

"""The other end of a pipe to a process that trains: `serve.py` says what is asked and answered."""

import json
import os
import subprocess
from pathlib import Path

HERE = Path(__file__).parent


def held_to(threads: int) -> dict:
    """How a process is started that must not use more cores: XLA starts as many threads as it may use."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return {
        "env": os.environ | {"JAX_PLATFORMS": "cpu"},
        "preexec_fn": lambda: os.sched_setaffinity(0, cores),
    }


class Failed(Exception):
    """What was asked of a worker went wrong; its last words."""


class Worker:
    """A process that trains one workload in one way, and shares its heap and caches with no other."""

    def __init__(self, python: Path | str, script: str, threads: int) -> None:
        self.process = subprocess.Popen(
            [python, HERE / script, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **held_to(threads),
        )
        self.versions = self.answer()

    def load(self, **words: object) -> None:
        """What is to be trained, in words of the worker's script."""
        self.ask(load=words)

    def losses(self, steps: int) -> list[float]:
        """Train for so many steps; the first one compiles."""
        return self.ask(train=steps)["losses"]

    def seconds(self, calls: int, clock: str) -> float:
        """Seconds of a step, by the worker's own clock."""
        return self.ask(run=calls)[clock] / calls

    def ask(self, **order: object) -> dict:
        self.process.stdin.write(json.dumps(order) + "\n")
        self.process.stdin.flush()
        return self.answer()

    def answer(self) -> dict:
        line = self.process.stdout.readline()
        if not line:
            raise Failed(f"the process ended with code {self.process.wait()}")
        said = json.loads(line)
        if "failed" in said:
            raise Failed(said["failed"])
        return said

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

"""JAX beside torch: an environment of its own, and a worker process in it that trains the same weights.

`jax_worker.py` is the other end of the pipe.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from torch import Tensor, nn

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parent / ".venv-jax"
PACKAGES = ("jax==0.10.2", "jaxlib==0.10.2", "optax==0.2.8")
# both ways of `jax_models.py` to write a model that repeats itself
WAYS = {"lstm": ("jit", "jit, scan"), "blocks": ("jit", "jit, scan")}


def ways_of(workload: str) -> tuple[str, ...]:
    return WAYS.get(workload.partition("-")[0], ("jit",))


def environment() -> Path:
    """The Python of an environment with JAX, which is made if it is not there."""
    python = ENVIRONMENT / "bin" / "python"
    mark = ENVIRONMENT / " ".join(PACKAGES)
    if not mark.exists():
        subprocess.run([sys.executable, "-m", "venv", ENVIRONMENT], check=True)
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
        mark.touch()
    return python


def write_weights(path: Path, model: nn.Module, inputs: tuple[Tensor, ...], **settings: float) -> None:
    """Weights, inputs and the settings of `optax.adamw`, as JAX reads them."""
    arrays = {f"parameter:{name}": value for name, value in model.named_parameters()}
    arrays |= {f"buffer:{name}": value for name, value in model.named_buffers()}
    arrays |= {f"input:{position}": value for position, value in enumerate(inputs)}
    np.savez(path, settings=json.dumps(settings), **{k: v.detach().numpy() for k, v in arrays.items()})


def held_to(threads: int) -> dict:
    """How a process is started that must not use more cores: XLA starts as many threads as it may use."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    return {
        "env": os.environ | {"JAX_PLATFORMS": "cpu"},
        "preexec_fn": lambda: os.sched_setaffinity(0, cores),
    }


class Failed(Exception):
    """The worker ended without an answer; what it said is above."""


class Worker:
    """A process that trains one workload in one way."""

    def __init__(self, python: Path, threads: int) -> None:
        self.process = subprocess.Popen(
            [python, HERE / "jax_worker.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            **held_to(threads),
        )
        self.versions = self.answer()

    def load(self, workload: str, way: str, model: nn.Module, inputs: tuple[Tensor, ...], **settings: float) -> None:
        """Hand over weights and inputs; `settings` are those of `optax.adamw`."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "weights.npz")
            write_weights(path, model, inputs, **settings)
            self.ask(load=str(path), workload=workload, way=way)

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
            raise Failed(f"the JAX worker ended with code {self.process.wait()}")
        return json.loads(line)

    def __enter__(self) -> "Worker":
        return self

    def __exit__(self, *error: object) -> None:
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()

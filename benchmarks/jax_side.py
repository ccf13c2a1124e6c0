"""JAX beside torch: an environment of its own, and the weights that its process trains, the same ones."""

import json
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from torch import Tensor, nn
from worker import HERE, Worker
from workloads import build

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


def load(worker: Worker, workload: str, way: str, **settings: float) -> None:
    """Hand over weights and inputs; `settings` are those of `optax.adamw`."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "weights.npz")
        write_weights(path, *build(workload), **settings)
        worker.load(path=str(path), workload=workload, way=way)

"""A process with JAX and without torch, that trains what it is given: see `serve.py`.

A step is one call of `jax.jit`, with weights, buffers and the optimizer's state donated, so that they are updated in
place. Calls are not waited for until the last one of a run.
"""

import json
from collections.abc import Callable

import jax
import numpy as np
import optax
from jax import Array
from jax_models import LOSSES, Arrays, Loss, layout
from serve import serve


def load(path: str, workload: str, way: str) -> "Training":
    """What `jax_side.py` has written, trained in a way of `jax_models.py`."""
    family = workload.partition("-")[0]
    return Training(path, *LOSSES[family][way])


class Training:
    """A model under training: what is kept between steps, and the compiled step."""

    def __init__(self, path: str, loss: Loss, arrange: Callable[[Arrays], Arrays]) -> None:
        kept: dict[str, Arrays] = {"parameter": {}, "buffer": {}, "input": {}}
        with np.load(path) as arrays:
            settings = json.loads(str(arrays["settings"]))
            for key in arrays.files:
                kind, _, name = key.partition(":")
                if name:
                    value = arrays[key] if kind == "input" else layout(name, arrays[key])
                    kept[kind][name] = jax.device_put(value.astype(np.int32) if value.dtype == np.int64 else value)
        self.inputs = tuple(kept["input"].values())
        optimizer = optax.adamw(**settings)
        parameters = arrange(kept["parameter"])
        self.state = (parameters, kept["buffer"], optimizer.init(parameters))
        self.compiled = jax.jit(step_of(loss, optimizer), donate_argnums=0)

    def step(self) -> Array:
        self.state, loss = self.compiled(self.state, *self.inputs)
        return loss

    def wait(self, loss: Array) -> None:
        loss.block_until_ready()


def step_of(loss: Loss, optimizer: optax.GradientTransformation) -> Callable:
    def step(state, *inputs):
        parameters, buffers, moments = state
        (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(parameters, buffers, *inputs)
        updates, moments = optimizer.update(gradients, moments, parameters)
        return (optax.apply_updates(parameters, updates), buffers, moments), value

    return step


if __name__ == "__main__":
    serve({"jax": jax.__version__, "optax": optax.__version__}, load)

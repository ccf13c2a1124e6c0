"""The workloads of `workloads.py` in JAX: loss functions of weights under torch's names, and of the same inputs.

Weights are laid out as JAX code has them: matrices as [inputs, outputs], filters as HWIO, images as NHWC. A loss
function returns the loss and the new buffers, which are empty where a model has none.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array, lax

Arrays = dict[str, Array]
Loss = Callable[..., tuple[Array, Arrays]]

MOMENTUM, EPSILON = 0.1, 1e-5
HEADS = 6


def layout(name: str, value: np.ndarray) -> np.ndarray:
    """A weight of torch as JAX has it."""
    if value.ndim == 4:
        return value.transpose(2, 3, 1, 0)
    is_matrix = value.ndim == 2 and name not in ("tokens.weight", "positions.weight")
    return value.T if is_matrix else value


def cross_entropy(logits: Array, classes: Array) -> Array:
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), classes[:, None], axis=1)
    return -picked.mean()


def linear(p: Arrays, name: str, x: Array) -> Array:
    return x @ p[f"{name}.weight"] + p[f"{name}.bias"]


def layer_norm(p: Arrays, name: str, x: Array) -> Array:
    centered = x - x.mean(-1, keepdims=True)
    scaled = centered * lax.rsqrt(jnp.square(centered).mean(-1, keepdims=True) + EPSILON)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def gelu(x: Array) -> Array:
    return jax.nn.gelu(x, approximate=False)


def mlp(p: Arrays, buffers: Arrays, x: Array, classes: Array) -> tuple[Array, Arrays]:
    last = len(p) // 2 - 1
    for layer in range(last):
        x = jax.nn.relu(linear(p, f"layers.{layer}", x))
    return cross_entropy(linear(p, f"layers.{last}", x), classes), buffers


def gpt(p: Arrays, buffers: Arrays, tokens: Array, targets: Array) -> tuple[Array, Arrays]:
    x = p["tokens.weight"][tokens] + p["positions.weight"][: tokens.shape[1]]
    for block in range(depth_of(p)):
        x = x + attention(p, f"blocks.{block}.attention", layer_norm(p, f"blocks.{block}.norm1", x))
        hidden = gelu(linear(p, f"blocks.{block}.mlp.0", layer_norm(p, f"blocks.{block}.norm2", x)))
        x = x + linear(p, f"blocks.{block}.mlp.2", hidden)
    logits = layer_norm(p, "norm", x) @ p["head.weight"]
    return cross_entropy(logits.reshape(-1, logits.shape[-1]), targets.reshape(-1)), buffers


def attention(p: Arrays, name: str, x: Array) -> Array:
    batch, length, width = x.shape
    qkv = linear(p, f"{name}.qkv", x).reshape(batch, length, 3, HEADS, width // HEADS)
    mixed = jax.nn.dot_product_attention(qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2], is_causal=True)
    return linear(p, f"{name}.out", mixed.reshape(batch, length, width))


def blocks(p: Arrays, buffers: Arrays, x: Array) -> tuple[Array, Arrays]:
    for block in range(depth_of(p)):
        x = x + residual({part: p[f"blocks.{block}.{part}"] for part in parts_of(p)}, x)
    return jnp.square(x).mean(), buffers


def blocks_scanned(p: Arrays, buffers: Arrays, x: Array) -> tuple[Array, Arrays]:
    """The same as one loop over weights that are kept stacked."""
    x, _ = lax.scan(lambda x, block: (x + residual(block, x), None), x, p)
    return jnp.square(x).mean(), buffers


def residual(p: Arrays, x: Array) -> Array:
    return linear(p, "down", gelu(linear(p, "up", layer_norm(p, "norm", x))))


def depth_of(p: Arrays) -> int:
    return 1 + max(int(name.split(".")[1]) for name in p if name.startswith("blocks."))


def parts_of(p: Arrays) -> list[str]:
    return [name.removeprefix("blocks.0.") for name in p if name.startswith("blocks.0.")]


def as_they_are(p: Arrays) -> Arrays:
    return p


def stacked(p: Arrays) -> Arrays:
    """The weights of all blocks, each as one array: `up.weight[block, input, output]`."""
    return {part: jnp.stack([p[f"blocks.{block}.{part}"] for block in range(depth_of(p))]) for part in parts_of(p)}


def resnet(p: Arrays, buffers: Arrays, images: Array, classes: Array) -> tuple[Array, Arrays]:
    new = dict(buffers)
    x = jax.nn.relu(batch_norm(p, new, "stem.1", convolve(p, "stem.0", images.transpose(0, 2, 3, 1), 1)))
    for block in range(depth_of(p)):
        name = f"blocks.{block}"
        is_projected = f"{name}.skip.0.weight" in p
        stride = 2 if is_projected else 1
        y = jax.nn.relu(batch_norm(p, new, f"{name}.norm1", convolve(p, f"{name}.conv1", x, stride)))
        y = batch_norm(p, new, f"{name}.norm2", convolve(p, f"{name}.conv2", y, 1))
        if is_projected:
            x = batch_norm(p, new, f"{name}.skip.1", convolve(p, f"{name}.skip.0", x, stride))
        x = jax.nn.relu(y + x)
    return cross_entropy(linear(p, "head", x.mean((1, 2))), classes), new


def convolve(p: Arrays, name: str, x: Array, stride: int) -> Array:
    weight = p[f"{name}.weight"]
    margin = weight.shape[0] // 2
    return lax.conv_general_dilated(
        x, weight, (stride, stride), ((margin, margin),) * 2, dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


def batch_norm(p: Arrays, new: Arrays, name: str, x: Array) -> Array:
    """Normalized by the batch; what is kept of it goes into `new`."""
    mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    count = x.size // x.shape[-1]
    kept = {"running_mean": mean, "running_var": variance * (count / (count - 1))}
    for part, value in kept.items():
        old = new[f"{name}.{part}"]
        new[f"{name}.{part}"] = old + MOMENTUM * (lax.stop_gradient(value) - old)
    new[f"{name}.num_batches_tracked"] = new[f"{name}.num_batches_tracked"] + 1
    return (x - mean) * (lax.rsqrt(variance + EPSILON) * p[f"{name}.weight"]) + p[f"{name}.bias"]


def lstm(p: Arrays, buffers: Arrays, x: Array) -> tuple[Array, Arrays]:
    hidden = cell = jnp.zeros(x.shape[1:])
    for time in range(x.shape[0]):
        hidden, cell = lstm_cell(p, x[time], hidden, cell)
    return jnp.square(hidden).mean(), buffers


def lstm_scanned(p: Arrays, buffers: Arrays, x: Array) -> tuple[Array, Arrays]:
    """The same as one loop."""
    zeros = jnp.zeros(x.shape[1:])
    (hidden, _), _ = lax.scan(lambda state, step: (lstm_cell(p, step, *state), None), (zeros, zeros), x)
    return jnp.square(hidden).mean(), buffers


def lstm_cell(p: Arrays, x: Array, hidden: Array, cell: Array) -> tuple[Array, Array]:
    gates = x @ p["cell.weight_ih"] + p["cell.bias_ih"] + hidden @ p["cell.weight_hh"] + p["cell.bias_hh"]
    i, f, g, o = jnp.split(gates, 4, axis=1)
    cell = jax.nn.sigmoid(f) * cell + jax.nn.sigmoid(i) * jnp.tanh(g)
    return jax.nn.sigmoid(o) * jnp.tanh(cell), cell


# Where a model repeats itself it is written in both ways that JAX has for it; beside each, how weights are kept.
LOSSES: dict[str, dict[str, tuple[Loss, Callable[[Arrays], Arrays]]]] = {
    "mlp": {"jit": (mlp, as_they_are)},
    "gpt": {"jit": (gpt, as_they_are)},
    "resnet": {"jit": (resnet, as_they_are)},
    "lstm": {"jit": (lstm, as_they_are), "jit, scan": (lstm_scanned, as_they_are)},
    "blocks": {"jit": (blocks, as_they_are), "jit, scan": (blocks_scanned, stacked)},
}

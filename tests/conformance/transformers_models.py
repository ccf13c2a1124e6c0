"""Every model class of eight mappings of `transformers`, small and random and with its defaults otherwise: loss and
all gradients on three batches of two shapes, in training and in evaluation."""

import functools
import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from . import torchvision_kernels
from .judge import Compile, Result, Status, Sweep, Trial, judge
from .model_inputs import batches
from .observe import Seen, fresh, see
from .small_configs import CLASSES, small

TASKS = {
    "causal-lm": "CAUSAL_LM",
    "masked-lm": "MASKED_LM",
    "seq2seq-lm": "SEQ_TO_SEQ_CAUSAL_LM",
    "sequence-classification": "SEQUENCE_CLASSIFICATION",
    "token-classification": "TOKEN_CLASSIFICATION",
    "image-classification": "IMAGE_CLASSIFICATION",
    "audio-classification": "AUDIO_CLASSIFICATION",
    "object-detection": "OBJECT_DETECTION",
}
TURNS = (0, 1, 2, 0)
"""Which batch each call is given, which is its seed, too: the last call has all of the first and finds its program."""


def names() -> tuple[str, ...]:
    """Each with its task, in an order that does not put relatives together."""
    return tuple(f"{task} {model}" for task in TASKS for model in _classes(task))


def check(name: str, compile_fn: Compile) -> Iterator[Result]:
    task, _, model = name.partition(" ")
    torchvision_kernels.stand_in()
    try:
        trials = list(_trials(task, model))
    except (ImportError, AttributeError) as error:
        yield Result(task, model, Status.EXCLUDED, f"{type(error).__name__}: {error}")
    else:
        yield judge(task, model, trials, compile_fn)


SWEEP = Sweep("transformers", names, check)


def build(task: str, model: str) -> nn.Module:
    import transformers

    transformers.logging.set_verbosity_error()
    torch.manual_seed(0)
    model_class = getattr(transformers, model)
    return model_class(small(model_class.config_class, **CLASSES.get(model, {})))


@functools.cache
def _classes(task: str) -> tuple[str, ...]:
    torchvision_kernels.stand_in()
    from transformers.models.auto import modeling_auto

    found: dict[str, None] = {}
    for models in getattr(modeling_auto, f"MODEL_FOR_{TASKS[task]}_MAPPING_NAMES").values():
        found |= dict.fromkeys((models,) if isinstance(models, str) else models)
    return tuple(found)


def _trials(task: str, model: str) -> Iterator[Trial]:
    import transformers

    code = getattr(transformers, model).forward.__code__
    for mode in ("train", "eval"):
        start = functools.partial(_start, task, model, mode)
        yield Trial(mode, start, code, seeds=TURNS, repeated=(len(TURNS) - 1,))


def _start(task: str, model: str, mode: str, compile_fn: Compile) -> Callable[[int], Seen]:
    built = build(task, model).train(mode == "train")
    given = batches(task, built)
    called = compile_fn(built)
    return lambda seed: _see_step(called, built, given[TURNS[seed]], seed)


def _see_step(called: Callable[..., Any], model: nn.Module, batch: dict[str, Any], seed: int) -> Seen:
    """A call and its backward, as a training loop has them."""
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed)
    model.zero_grad(set_to_none=True)
    output = called(**fresh(batch))
    loss = getattr(output, "loss", None)
    if loss is None:
        loss = sum(t.float().sum() for t in _tensors(output) if t.requires_grad)
    seen = see("output", _plain(output))
    loss.backward()
    seen |= see("gradient of", {name: p.grad for name, p in model.named_parameters()})
    seen |= see("state", dict(model.state_dict()))
    seen |= see("buffer", dict(model.named_buffers()))
    seen |= see("generator after backward", torch.get_rng_state())
    return seen


def _plain(value: Any) -> Any:
    """The same as dicts and lists, so that each tensor in a cache is seen."""
    if isinstance(value, dict):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if type(value).__module__.startswith("transformers") and hasattr(value, "__dict__"):
        return {"type": type(value).__name__} | {key: _plain(one) for key, one in vars(value).items()}
    return value


def _tensors(output: Any) -> list[torch.Tensor]:
    import torch.utils._pytree as pytree

    return [leaf for leaf in pytree.tree_leaves(_plain(output)) if isinstance(leaf, torch.Tensor)]

"""Batches for models of `transformers`, as its tokenizers and processors give them: padded, with masks and labels."""

import inspect
from typing import Any

import torch
from torch import nn

from .small_configs import IMAGE, SPECIAL_TOKENS, VOCABULARY

Batch = dict[str, Any]

#: The lengths of three batches, of two shapes. In the second no row is shorter than the others.
LENGTHS = ((12, 8), (12, 12), (10, 7, 9))
LOWEST = 3


def batches(task: str, model: nn.Module) -> list[Batch]:
    """Three batches of two shapes for this model."""
    generator = torch.Generator().manual_seed(7)
    return [_batch(task, model, lengths, generator) for lengths in LENGTHS]


def _batch(task: str, model: nn.Module, lengths: tuple[int, ...], generator: torch.Generator) -> Batch:
    taken = inspect.signature(model.forward).parameters
    main = _main_input(task, model, taken)
    if main == "pixel_values":
        batch = _images(model, len(lengths), generator)
    elif main in ("input_values", "input_features"):
        batch = _sounds(model, main, lengths, taken, generator)
    else:
        batch = _texts(model, lengths, taken, generator)
    return batch | _labels(task, model, batch, lengths, taken, generator)


def _main_input(task: str, model: nn.Module, taken: Any) -> str:
    if task in ("image-classification", "object-detection") and "pixel_values" in taken:
        return "pixel_values"
    for name in ("input_values", "input_features"):
        if name in taken and "input_ids" not in taken and task != "causal-lm":
            return name
    return "input_ids"


def _texts(model: nn.Module, lengths: tuple[int, ...], taken: Any, generator: torch.Generator) -> Batch:
    mask = _mask(lengths, max(lengths))
    tokens = torch.randint(LOWEST, _highest(model), mask.shape, generator=generator)
    tokens = torch.where(mask.bool(), tokens, SPECIAL_TOKENS["pad_token_id"])
    tokens[torch.arange(len(lengths)), torch.tensor(lengths) - 1] = SPECIAL_TOKENS["eos_token_id"]
    batch: Batch = {"input_ids": tokens}
    if "attention_mask" in taken:
        batch["attention_mask"] = mask
    if "token_type_ids" in taken and getattr(model.config, "type_vocab_size", 0):
        batch["token_type_ids"] = torch.zeros_like(mask)
    if model.config.model_type == "git":
        batch |= _images(model, len(lengths), generator)
    if "bbox" in taken:
        batch["bbox"] = torch.tensor([1, 2, 3, 4]).expand(*mask.shape, 4).clone()
    return batch


def _highest(model: nn.Module) -> int:
    """Above are tokens of special meaning."""
    vocabulary = getattr(model.config.get_text_config(), "vocab_size", None) or VOCABULARY
    return min(VOCABULARY, vocabulary) - 24


def _mask(lengths: tuple[int, ...], longest: int) -> torch.Tensor:
    return (torch.arange(longest)[None] < torch.tensor(lengths)[:, None]).long()


def _images(model: nn.Module, count: int, generator: torch.Generator) -> Batch:
    config = model.config
    config = getattr(config, "vision_config", None) or config
    side = getattr(config, "image_size", None) or IMAGE
    height, width = side if isinstance(side, (list, tuple)) else (side, side)
    channels = getattr(config, "num_channels", 3)
    return {"pixel_values": torch.randn(count, channels, height, width, generator=generator)}


def _sounds(model: nn.Module, main: str, lengths: tuple[int, ...], taken: Any, generator: torch.Generator) -> Batch:
    if main == "input_values" and hasattr(model.config, "conv_kernel"):
        samples = tuple(length * 400 for length in lengths)
        sounds = torch.randn(len(lengths), max(samples), generator=generator)
        mask = _mask(samples, max(samples))
        return {main: sounds * mask} | ({"attention_mask": mask} if "attention_mask" in taken else {})
    bins = getattr(model.config, "num_mel_bins", None) or getattr(model.config, "feature_projection_input_dim", 16)
    longest = 2 * model.config.max_source_positions if model.config.model_type == "whisper" else None
    frames = longest or getattr(model.config, "max_length", None) or 4 * max(lengths)
    mask = _mask(tuple(4 * length for length in lengths), frames)
    sounds = torch.randn(len(lengths), frames, bins, generator=generator)
    return {main: sounds} | ({"attention_mask": mask} if "attention_mask" in taken and main != "input_values" else {})


def _labels(
    task: str, model: nn.Module, batch: Batch, lengths: tuple[int, ...], taken: Any, generator: torch.Generator
) -> Batch:
    count = len(lengths)
    if "labels" not in taken:
        return {}
    if task == "object-detection":
        return {"labels": [_boxes(model, generator) for _ in range(count)]}
    if task in ("sequence-classification", "image-classification", "audio-classification"):
        return {"labels": torch.randint(0, model.config.num_labels, (count,), generator=generator)}
    mask = _mask(lengths, max(lengths)).bool()
    if task == "token-classification":
        kinds = torch.randint(0, model.config.num_labels, mask.shape, generator=generator)
        return {"labels": torch.where(mask, kinds, -100)}
    if task == "causal-lm" or (task == "seq2seq-lm" and not model.config.is_encoder_decoder and "input_ids" in batch):
        return {"labels": torch.where(mask, batch["input_ids"], -100)}
    answers = torch.randint(LOWEST, _highest(model), mask.shape, generator=generator)
    if task == "masked-lm":
        masked = torch.rand(mask.shape, generator=generator) < 0.5
        masked[:, 0] = True
        return {"labels": torch.where(mask & masked, answers, -100)}
    count = max(lengths) - (0 if model.config.model_type == "fsmt" else 3)
    return {"labels": torch.where(mask, answers, -100)[:, :count].contiguous()}


def _boxes(model: nn.Module, generator: torch.Generator) -> Batch:
    count = int(torch.randint(1, 4, (), generator=generator))
    middle = torch.rand(count, 2, generator=generator) * 0.4 + 0.3
    size = torch.rand(count, 2, generator=generator) * 0.2 + 0.1
    kinds = torch.randint(0, model.config.num_labels, (count,), generator=generator)
    return {"class_labels": kinds, "boxes": torch.cat([middle, size], 1)}

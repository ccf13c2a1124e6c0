"""Torchvision without its kernels: its wheel has those for CUDA alone, and its import asks for them."""

import functools

import torch


@functools.cache
def stand_in() -> torch.library.Library:
    """Declares what torchvision declares about; no model here runs it."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    return library

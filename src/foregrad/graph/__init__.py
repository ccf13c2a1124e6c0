"""Tools for the autograd graph itself: every name of `torch.autograd.graph`, and more. `docs/graph.md` shows them."""

from torch.autograd.graph import (
    GradientEdge,
    disable_saved_tensors_hooks,
    get_gradient_edge,
    increment_version,
    region_activation_memory_budget,
    saved_tensors_hooks,
    set_override_stale_capture_stream,
    set_warn_on_accumulate_grad_stream_mismatch,
)

from foregrad.graph.diff import Diff, diff
from foregrad.graph.holders import Holder, holders
from foregrad.graph.memory import Memory, memory
from foregrad.graph.modules import track_modules
from foregrad.graph.multi_grad import register_multi_grad_hook
from foregrad.graph.mutation import Mutations, allow_mutation_on_saved_tensors
from foregrad.graph.nodes import Node, find, walk, will_run
from foregrad.graph.policies import save_as, save_on_cpu, save_on_disk, save_quantized, save_with
from foregrad.graph.policy import Policy, Report
from foregrad.graph.render import render
from foregrad.graph.saved import Saved, saved

__all__ = [
    "Diff",
    "GradientEdge",
    "Holder",
    "Memory",
    "Mutations",
    "Node",
    "Policy",
    "Report",
    "Saved",
    "allow_mutation_on_saved_tensors",
    "diff",
    "disable_saved_tensors_hooks",
    "find",
    "get_gradient_edge",
    "holders",
    "increment_version",
    "memory",
    "region_activation_memory_budget",
    "register_multi_grad_hook",
    "render",
    "save_as",
    "save_on_cpu",
    "save_on_disk",
    "save_quantized",
    "save_with",
    "saved",
    "saved_tensors_hooks",
    "set_override_stale_capture_stream",
    "set_warn_on_accumulate_grad_stream_mismatch",
    "track_modules",
    "walk",
    "will_run",
]

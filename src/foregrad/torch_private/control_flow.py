"""Control flow: torch's higher-order ops that stand for Python's own branches and loops."""

from __future__ import annotations

from torch._higher_order_ops.cond import cond_op
from torch._higher_order_ops.flex_attention import flex_attention as flex_attention_op
from torch._higher_order_ops.flex_attention import sdpa_dense
from torch._higher_order_ops.map import map_impl
from torch._higher_order_ops.scan import scan_op
from torch._higher_order_ops.while_loop import while_loop_op

__all__ = ["cond_op", "flex_attention_op", "map_impl", "scan_op", "sdpa_dense", "while_loop_op"]

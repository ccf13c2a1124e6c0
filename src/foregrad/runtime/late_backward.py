"""Late backward: one more run of the autograd engine over a recording, for a backward that was not recorded so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from foregrad.core.errors import BackwardError, CaptureError
from foregrad.program.linearity import not_linear
from foregrad.program.program import Program
from foregrad.record.recording import Backward, Layouts
from foregrad.record.saved_tensors import survey
from foregrad.record.stage import Stage
from foregrad.record.trace import Survey


def survey_of(stage: Stage, layouts: Layouts) -> Survey | None:
    """What lies behind the sources whose tangents arrive; only the first stage reads tensors of the caller's."""
    if stage.phase:
        return None
    sources = [source for source, stride in zip(stage.sources, layouts, strict=True) if stride is not None]
    return survey(stage.recording, sources, stage.slots)


def refuse_late(stage: Stage) -> None:
    """Refuse gradients of a backward that lead to tensors which the forward did not read: they have no place in it."""
    inputs = stage.recording.inputs
    late = [lifted for lifted in inputs.all if lifted in inputs.late and lifted.ghost.requires_grad]
    reached = survey(stage.recording, stage.sources, [lifted.ghost for lifted in late]).reached if late else ()
    wanted = [str(lifted.spec) for lifted, is_reached in zip(late, reached, strict=True) if is_reached]
    if wanted:
        raise BackwardError(
            f"this backward reads {', '.join(wanted)}, which the call did not, and is to be differentiated: no second "
            "gradient would arrive there.\nGive it to the custom Function as an argument, or run this part without "
            "foregrad."
        )


def refuse_nonlinear(stage: Stage, program: Program) -> None:
    """Refuse second derivatives through code of the user's that is not linear in the gradient: in eager it is given
    the sum of what arrives by several ways, and a program knows only the part that comes through itself."""
    recording = stage.recording
    has_code = recording.intercept.has_hooks or recording.recorder.has_functions
    node = not_linear(program) if has_code else None
    if node is not None:
        raise CaptureError(
            "a hook, or the backward of a custom Function, is not linear in the gradient that it is given, and is to "
            f"be differentiated.\n  at {node.meta.get('origin')}\nDo this part outside, or clip after backward."
        )


def run_engine(stage: Stage, layouts: Layouts, differentiable: tuple[bool, ...] | None = None) -> Backward:
    """Record the backward of a stage for tangents of these layouts."""
    reals = [lifted.reachable for lifted in stage.inputs]
    backward = stage.recording.backward(
        stage.sources, stage.slots, layouts, reals=reals, differentiable=differentiable, earlier=stage.earlier
    )
    error = backward.error or (_delayed_error(stage.sources) if stage.earlier is not None else None)
    return replace(backward, error=error)


def _delayed_error(gradients: Sequence[torch.Tensor]) -> Exception | None:
    """The error that autograd keeps in a gradient that cannot be differentiated again."""
    for gradient in gradients:
        node = gradient.grad_fn
        if node is not None and node.name().endswith("Error"):
            try:
                node(gradient)  # type: ignore[operator]
            except RuntimeError as error:
                return error
    return None

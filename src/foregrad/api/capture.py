"""Capture: from a function and its arguments to a program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import torch

from foregrad.api.captured import RaisedAfterEffects
from foregrad.core.errors import CaptureError
from foregrad.functionalize.solve import Solver
from foregrad.process.forks import undivided
from foregrad.process.garbage_collection import no_garbage_collection
from foregrad.program.build import build
from foregrad.program.program import Program
from foregrad.record.differentiate import differentiate
from foregrad.record.freeze import freeze
from foregrad.record.lift.argument_objects import NO_NUMBERS, Before, GivenArguments
from foregrad.record.lift.arguments import argument_names, bind_arguments, function_of, order_counts
from foregrad.record.lift.declared_state import Container, Declared, StateStore, declare, leaves_in
from foregrad.record.lift.input_names import give_names
from foregrad.record.lift.locate import AsHolder, Location, Variable, generators, variables
from foregrad.record.origins import definition
from foregrad.record.python.called_modules import CalledModules, modes_of
from foregrad.record.python.container_arguments import Path
from foregrad.record.python.executed_code import Executed
from foregrad.record.python.grad_scaler import scaled_steps
from foregrad.record.python.iterators import is_iterator
from foregrad.record.python.module_attributes import ModuleAttributes
from foregrad.record.python.native_code import refuse_native
from foregrad.record.python.optimizers import only_declared
from foregrad.record.python.random_numbers import Watched
from foregrad.record.python.result_forms import ResultForm
from foregrad.record.python.side_effects import PLAIN_OR_CONTAINER, AttributesOf, Change, EffectHolder, SideEffects
from foregrad.record.questions import Question
from foregrad.record.recording import Recording
from foregrad.record.refusals import (
    changes_of,
    refuse_attributes,
    refuse_escaped,
    refuse_growth,
    refuse_hidden_hooks,
    refuse_hooks_on_views,
    refuse_kept,
    refuse_made_modules,
    refuse_made_up,
    refuse_sizes,
    refuse_stored,
    refuse_types_of_numbers,
)
from foregrad.record.results import find_results
from foregrad.record.stage import Stage
from foregrad.record.symbols.dimensions import Sizes
from foregrad.record.symbols.numbers import Expression, ValueNeeded
from foregrad.record.symbols.scalar_state import Mirror
from foregrad.record.symbols.varying import Dimensions
from foregrad.record.trace import Trace
from foregrad.record.tracebacks import readable
from foregrad.record.user_objects import UserObjects
from foregrad.runtime.guards.python_reads import ObservedReads, observe_reads
from foregrad.torch_private.dispatch import no_dispatch_modes
from foregrad.torch_private.pytree import tree_leaves


@dataclass(frozen=True, eq=False)
class Captured:
    """A program, and what is needed to run it and to record more of it."""

    program: Program
    trace: Trace
    stage: Stage
    locations: dict[Any, Location]  # of plain tensors by object, and of inputs that wrap others
    modules: tuple[torch.nn.Module, ...]
    variables: tuple[Variable, ...]
    arguments: dict[str, Any]  # by name
    declared: Declared
    generators: tuple[Variable, ...]  # where those are kept that it draws from, if they are no arguments
    changes: tuple[Change, ...]  # what the function does in Python that a program does not repeat
    once: tuple[Change, ...]  # what it changes outside, so that the program holds for this call alone
    given: GivenArguments
    form: ResultForm | None  # of a result in which objects come back, and of what it changes in its arguments
    reads: ObservedReads  # what it read in Python
    keeps_order: bool  # it can tell the order of keyword arguments
    objects: UserObjects  # held as long as this is
    refused: tuple[tuple[Path, str], ...] = ()  # numbers among the arguments that do not vary, though they should
    constants: tuple[str, ...] = ()  # numbers among the arguments that stay as they are, and why

    @property
    def creates_state(self) -> bool:
        """Whether the next call finds more in declared state than this one did."""
        slots = [s.slot for s in self.stage.stored if isinstance(s.slot.holder, Container) and s.value is not None]
        return any(slot.holder.items.get(slot.key) is None for slot in slots)

    @property
    def numbers(self) -> tuple[Expression, ...]:
        """Numbers that the program takes, or that the call stores or returns."""
        calling = self.program.calling
        kept = leaves_in([list(calling.stored), list(calling.results)])
        carried = self.stage.recording.numbers.carried
        return tuple(v for v in (*calling.inputs, *kept, *carried) if isinstance(v, Expression))

    @property
    def values_needed(self) -> dict[Path, str]:
        """Numbers among the arguments of which Python or an op had to know the value, and where."""
        told = [one for one in self.stage.recording.numbers.told if type(one.value) is not bool]
        given = [one for one in told if one.expression.is_given and one.expression.function is None]
        return {one.expression.source: f"its value is needed {one.line}" for one in given}

    @property
    def varying_numbers(self) -> tuple[str, ...]:
        """Which numbers among the arguments vary, in words."""
        numbers = self.stage.recording.numbers
        may = [
            f"{one.text} may be any {type(one.value).__name__}"
            for place, one in numbers.given.items()
            if place not in self.values_needed
        ]
        told = [one for one in numbers.told if one.expression.is_given and one.expression.function is not None]
        return (*may, *(f"as long as {one.in_words} ({one.line})" for one in told))


def capture(target: Any, *args: Any, state: tuple[Any, ...] = (), **kwargs: Any) -> Program:
    """Record a function or module on its arguments, forward and backward, as one program.

    Nothing is computed, no tensor changes and no generator moves. `state` names modules that the function uses, so that
    their parameters get their paths as names.
    """
    __tracebackhide__ = True  # pytest leaves this frame out
    if not isinstance(state, tuple):
        raise TypeError(
            f"state is a tuple of modules, tensors and optimizers that the function uses, not {state!r:.80}"
        )
    try:
        captured = capture_call(target, args, kwargs, state=state)
    except Exception as error:  # noqa: BLE001  # it is raised again
        raise readable(error)  # noqa: B904  # the same
    captured.objects.watched.outside.undo()
    if captured.program.calling.backward_error is not None:
        raise captured.program.calling.backward_error
    captured.program.verify()
    return captured.program


def capture_call(
    target: Any,
    args: Any,
    kwargs: Any,
    *,
    state: tuple[Any, ...] = (),
    call: Callable[..., Any] | None = None,
    python: str | None = None,
    varying: Dimensions | None = None,
    numbers: Mapping[Path, str] = NO_NUMBERS,
    asks: bool | Sequence[Question] = False,
) -> Captured:
    """Capture one call; the real tensors are still held. `call` runs a module in a way of its own. `python` says that
    the call is a step, and whether what it changes in Python is refused. `varying` dimensions are symbols, and so are
    `numbers` among the arguments, if that is possible. Where it `asks`, Python is told what the real arguments give; or
    what these questions say, where the arguments have no data.
    """
    run = functools.partial(_capture_call, target, args, kwargs, state, call, python, varying, numbers)
    if asks is False:
        return run(asks=False)
    with suppress(_NeedsFloats, *(() if asks is True else (CaptureError,))):
        return run(asks=asks)
    return run(asks=asks, gives_floats=True)


class _NeedsFloats(Exception):
    """Something took no number that depends on data for a float, or the function raises an error of its own."""


def _capture_call(
    target: Any,
    args: Any,
    kwargs: Any,
    state: tuple[Any, ...],
    call: Callable[..., Any] | None,
    python: str | None,
    varying: Dimensions | None,
    numbers: Mapping[Path, str],
    *,
    asks: bool | Sequence[Question],
    gives_floats: bool = False,
) -> Captured:
    with undivided(), no_garbage_collection(), no_dispatch_modes():
        if isinstance(target, torch.nn.Module):
            refuse_native(target)
        without = frozenset(map(id, state))
        given = GivenArguments.of(args, kwargs, without=without, numbers=numbers)
        before = Before(given)
        capture_with = functools.partial(
            _capture_with,
            target,
            before,
            state=state,
            call=call,
            python=python,
            varying=varying,
            asks=asks,
            gives_floats=gives_floats,
        )
        try:
            return _with_numbers(capture_with, given, before, without)
        except BaseException as error:
            before.put_back(all_of_it=isinstance(error, (CaptureError, RaisedAfterEffects, _NeedsFloats)))
            if isinstance(error, CaptureError):
                error.leaves_no_trace = not before.is_lost
            raise


def _with_numbers(
    capture_with: Callable[[GivenArguments], Captured], given: GivenArguments, before: Before, without: frozenset[int]
) -> Captured:
    """A capture in which numbers vary; where that is refused, for the values of those that are to blame: those that the
    error names, or else integers first."""
    refused: dict[Path, str] = {}
    while given.numbers:
        try:
            return replace(_captured(capture_with, given, before, without), refused=tuple(refused.items()))
        except _NeedsFloats:
            raise
        except Exception as error:  # what the function itself raises, it raises below
            if before.is_lost:
                raise
            why = (str(error) or type(error).__name__).splitlines()[0]
            before.put_back()
            blamed = set(error.places) if isinstance(error, ValueNeeded) else set()
        integers = {path for path, value in given.places_of_numbers() if type(value) is int} & given.numbers.keys()
        blamed = (blamed & given.numbers.keys()) or integers or set(given.numbers)
        refused |= dict.fromkeys(blamed, why)
        rest = {path: text for path, text in given.numbers.items() if path not in blamed}
        given = GivenArguments.of(given.args, given.kwargs, without=without, numbers=rest)
    return replace(_captured(capture_with, given, before, without), refused=tuple(refused.items()))


def _captured(
    capture_with: Callable[[GivenArguments], Captured], given: GivenArguments, before: Before, without: frozenset[int]
) -> Captured:
    """A capture in which objects are opened that hold tensors; all objects, if it is refused otherwise."""
    again = functools.partial(GivenArguments.of, given.args, given.kwargs, numbers=given.numbers)
    try:
        return capture_with(given)
    except KeptElsewhere as kept:
        return capture_with(again(without=without | kept.objects))
    except CaptureError:
        if not given.closed or before.is_lost:
            raise
        before.put_back()
    try:
        return capture_with(again(without=without, more=True))
    except KeptElsewhere as kept:
        return capture_with(again(without=without | kept.objects))


class KeptElsewhere(Exception):
    """Objects among the arguments are reached otherwise, too: a copy would not be what is found there."""

    def __init__(self, objects: frozenset[int]) -> None:
        super().__init__()
        self.objects = objects


def _capture_with(
    target: Any,
    before: Before,
    given: GivenArguments,
    *,
    state: tuple[Any, ...],
    call: Callable[..., Any] | None,
    python: str | None,
    varying: Dimensions | None,
    asks: bool | Sequence[Question],
    gives_floats: bool,
) -> Captured:
    objects = UserObjects(Watched(Executed()))
    recording = Recording(objects, definition(function_of(target)[1]), Sizes(varying) if varying else None)
    solver, values = None if asks is False else Solver(recording), recording.recorder.values
    values.questions.solver, values.gives_floats = solver, gives_floats
    values.questions.given = None if isinstance(asks, bool) else iter(asks)
    try:
        one = _prepare(recording, objects, target, given, state, python)
        has_items = solver is not None and not gives_floats
        try:
            captured = _recorded(one, call or function_of(target)[0])
            if has_items and values.items and captured.program.calling.backward_error is not None:
                raise _NeedsFloats  # a formula of autograd's may have asked for a number
            return captured
        except BaseException as error:
            is_users = isinstance(error, Exception) and not isinstance(error, (CaptureError, KeptElsewhere))
            needs_floats = is_users and has_items and bool(values.items)
            raised = is_users and not needs_floats and _has_effects(one)
            may_go_on = isinstance(error, (CaptureError, KeptElsewhere)) or raised or bool(given.numbers)
            if may_go_on or needs_floats or python is not None or recording.sizes is not None:
                before.is_lost |= any(is_iterator(kept.value) for kept in objects.watched.outside.changed())
                one.undo()
            if (needs_floats or raised) and before.is_lost:
                raise CaptureError(
                    f"the function raises {type(error).__name__} on a way that the data have decided, and has moved an "
                    f"iterator before, which cannot be put back.\n{definition(function_of(target)[1])}\nPass what the "
                    "iterator gives."
                ) from error
            if needs_floats:
                raise _NeedsFloats from error
            if raised:
                raise RaisedAfterEffects from error
            raise
    finally:
        recording.recorder.give_memory()
        if solver is not None:
            solver.let_go()


def _has_effects(one: _Prepared) -> bool:
    """Whether a function that has asked the data and raises an error of its own has done something before."""
    recorder, arguments = one.recording.recorder, one.objects.arguments
    if recorder.python_calls.all:
        return True
    return bool(recorder.values.questions.all) and (
        any(op.writes or op.renames is not None for op in recorder.ops)
        or recorder.draws.has_drawn
        or one.recording.stores_something
        or (arguments is not None and any(True for _ in arguments.changed()))
        or bool(one.objects.watched.outside.changed())
    )


@dataclass(frozen=True, eq=False)
class _Prepared:
    """A call that is about to be recorded."""

    recording: Recording
    objects: UserObjects
    target: Any
    body: Any  # the function that has variables
    given: GivenArguments
    arguments: dict[str, Any]
    reach: tuple[Variable, ...]
    state: tuple[Any, ...]
    generators: tuple[Variable, ...]  # that are kept somewhere
    changeable: list[tuple[str, Any]]  # objects that the function can change, by name
    attributes: ModuleAttributes
    declared: Declared
    mirror: Mirror | None
    side_effects: SideEffects
    python: str | None

    def undo(self) -> None:
        """Put what the function has changed in Python back as it was."""
        self.objects.watched.outside.undo()
        self.side_effects.undo()


def _prepare(
    recording: Recording,
    objects: UserObjects,
    target: Any,
    given: GivenArguments,
    state: tuple[Any, ...],
    python: str | None,
) -> _Prepared:
    """Name what the function can reach, and take note of what it may change."""
    body, arguments, modules = function_of(target)[1], bind_arguments(target, *given.tree), recording.modules
    objects.argument_names |= argument_names(arguments)
    reach = () if isinstance(target, torch.nn.Module) else tuple(variables(body))
    names = {id(variable.value): variable.name for variable in reach}
    _name_modules(modules, target, state, reach, names)
    kept_generators = tuple(generators(modules.tops, body))
    for name, generator in (*_given_generators(target, arguments), *((g.name, g.value) for g in kept_generators)):
        recording.recorder.generators.add(name, generator)
    changeable = _changeable(modules, target, bind_arguments(target, given.args, given.kwargs))
    attributes = ModuleAttributes(recording, plain=python is None)
    declared, mirror = declare(recording, state, names)
    side_effects = SideEffects(() if python is None else _holders(recording, state, reach, names))
    objects.watched.outside.leave_out(one for one in state if not isinstance(one, torch.nn.Module))
    return _Prepared(
        recording=recording,
        objects=objects,
        target=target,
        body=body,
        given=given,
        arguments=arguments,
        reach=reach,
        state=state,
        generators=kept_generators,
        changeable=changeable,
        attributes=attributes,
        declared=declared,
        mirror=mirror,
        side_effects=side_effects,
        python=python,
    )


def _run(one: _Prepared, call: Callable[..., Any]) -> list[StateStore]:
    """Run the function on ghosts; what it has put into modules and declared state, which are as they were again."""
    try:
        one.declared.lift()
        with one.side_effects.watch(), only_declared(one.state), scaled_steps(one.state):
            one.recording.forward(call, one.given, modes_of(one.target))
    finally:
        stored = one.attributes.restore() + one.declared.restore()
        one.recording.stores_something = bool(stored)
    one.recording.numbers.is_closed = True
    return stored


def _recorded(one: _Prepared, call: Callable[..., Any]) -> Captured:
    """Run the function, and its backward, and build a program of what was recorded."""
    recording, body, reach, python = one.recording, one.body, one.reach, one.python
    with recording.recorder.values.mirrored(one.mirror):
        stored = _run(one, call)
        refuse_types_of_numbers(recording)
        changes, once = changes_of(recording, one.side_effects, python)
        refuse_made_modules(recording, one.attributes.made)
        refuse_kept(recording, body, reach)
        refuse_escaped(recording, [*one.changeable, *recording.grads.hooks.named])
        if once or python is not None:
            reach = tuple(variables(body)) if reach else ()  # what it changes there is said, or the program's own
        stage = _stage(recording, stored)
        one.objects.arguments = None
    reads = observe_reads(recording, one.target, body, one.state, reach, one.arguments)
    if not one.given.opened.isdisjoint(reads.met):
        raise KeptElsewhere(one.given.opened & reads.met)
    recording.settle(reads.met)
    locations = _located(recording, reads.places, one.declared)
    refuse_made_up(recording, locations, one.declared)
    refuse_sizes(recording)
    trace = freeze(stage)
    return Captured(
        program=build(trace, _name(one.target), recording.recorder.table),
        trace=trace,
        stage=stage,
        locations=locations,
        modules=tuple(recording.modules.called.values()),
        variables=reach,
        arguments=one.arguments,
        declared=one.declared,
        generators=tuple(kept for kept in one.generators if kept.value in recording.recorder.generators.drawn),
        changes=changes,
        once=once,
        given=one.given,
        form=recording.form,
        reads=reads,
        keeps_order=order_counts(one.target, one.given.kwargs),
        objects=one.objects,
    )


def _stage(recording: Recording, stored: list[StateStore]) -> Stage:
    """What a program is built from: the function with its results, effects and backward."""
    refuse_stored(recording, stored)
    refuse_attributes(recording)
    refuse_growth(recording)
    refuse_hidden_hooks(recording)
    refuse_hooks_on_views(recording)
    wrapped = recording.wrapped
    stored = wrapped.take_stores(stored)
    kept_outside = [tensor for store in stored for tensor in store.tensors() if recording.recorder.knows(tensor)]
    changed = recording.grads.changes([*recording.results, *kept_outside])
    grads = [(wrapped.take_stored(owner, ""), wrapped.take_stored(grad, "a .grad")) for owner, grad in changed]
    kept_outside += [grad for _, grad in grads if isinstance(grad, torch.Tensor)]
    results = find_results(recording, [*kept_outside, *recording.grads.beyond.gradients])
    return differentiate(recording, results, tuple(stored), tuple(grads))


def _name_modules(
    modules: CalledModules, target: Any, state: tuple[Any, ...], reach: tuple[Variable, ...], names: dict[int, str]
) -> None:
    """Paths for the modules that the function can reach, by which their parameters are named."""
    tops = [module for module in (target, *state) if isinstance(module, torch.nn.Module)]
    for module in tops:
        modules.add_names("" if len(tops) == 1 else names.get(id(module), type(module).__name__), module)
    if isinstance(target, torch.nn.Module):
        modules.called[id(target)] = target
    for variable in reach:
        if isinstance(variable.value, torch.nn.Module):
            modules.add_names(variable.name, variable.value)


def _located(recording: Recording, places: dict[int, Location], declared: Declared) -> dict[Any, Location]:
    """Where inputs that are no arguments are kept; each gets its name."""
    lifted, outer = recording.inputs.all, recording.inputs.outer
    give_names(recording, places, declared)
    found: dict[Any, Location] = {one.alias.object: places[id(one.real)] for one in lifted if id(one.real) in places}
    recording.inputs.keep_places({number: place.read for number, place in found.items()})
    return found | {recording.inputs.traced_outer(one): places[id(one.real)] for one in outer if id(one.real) in places}


def _holders(
    recording: Recording, state: tuple[Any, ...], reach: tuple[Variable, ...], names: dict[int, str]
) -> Iterator[EffectHolder]:
    """Everything in which a step may change something of Python's: modules, optimizers, variables."""
    for path, top in recording.modules.tops.values():
        for name, module in top.named_modules(prefix=path):
            yield AttributesOf(name or names.get(id(module), type(module).__name__), module)
    for one in state:
        if isinstance(one, torch.optim.Optimizer):
            yield AttributesOf(names.get(id(one), type(one).__name__), one)
    for variable in reach:
        if isinstance(variable.value, PLAIN_OR_CONTAINER):
            yield AsHolder(variable)


def _given_generators(target: Any, arguments: dict[str, Any]) -> Iterator[tuple[str, torch.Generator]]:
    """Generators among the arguments, and among those that a partial function brings."""
    while isinstance(target, functools.partial):
        brought = {f"args.{place}": value for place, value in enumerate(target.args)}
        arguments, target = {**brought, **target.keywords, **arguments}, target.func
    names = argument_names(arguments)
    for leaf in tree_leaves(list(arguments.values())):
        if isinstance(leaf, torch.Generator):
            yield names[id(leaf)], leaf


def _changeable(modules: CalledModules, target: Any, arguments: dict[str, Any]) -> list[tuple[str, Any]]:
    """Objects that the function can change, by their names."""
    tops = [(path or _name(top), top) for path, top in modules.tops.values()]
    return [*arguments.items(), *tops, (_name(target), target)]


def _name(target: Any) -> str:
    if isinstance(target, torch.nn.Module):
        return type(target).__name__
    name = getattr(target, "__name__", type(target).__name__)
    return name if name.isidentifier() else "function"

"""Guards: what capture assumed about a call, checked by generated code at each call.

A guard that fails makes the call return `MISS`; then another program is tried, or the function is captured again.
"""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import fields, is_dataclass, replace
from itertools import combinations
from types import FunctionType, ModuleType
from typing import Any

import torch

from foregrad.core.generated import Check
from foregrad.core.history import (
    attributes_of,
    gets_no_gradient,
    grad_of,
    keeps_gradient,
    leads_nowhere,
    shares_version,
)
from foregrad.core.plain_objects import slots_of
from foregrad.core.shared_memory import address
from foregrad.core.source import Source
from foregrad.core.tensor_properties import answers_otherwise
from foregrad.record.ghosts.sparse import OldSparseGrad
from foregrad.record.lift.argument_objects import GivenNumber
from foregrad.record.lift.locate import Variable, write_same
from foregrad.record.trace import AnyInput, TracedInput, TracedWrapper
from foregrad.runtime.declared_state import StateReader
from foregrad.runtime.guards.assumptions import Assumptions
from foregrad.runtime.guards.comparable import PLAIN, can_compare
from foregrad.runtime.guards.module_guards import check_modules
from foregrad.runtime.guards.overlap import Overlap, SamePattern, in_one_place
from foregrad.runtime.guards.python_objects import has_own_getattr
from foregrad.runtime.guards.reasons import check_that, one_line
from foregrad.runtime.guards.torch_guards import (
    SameState,
    SameTensors,
    attention_kernels,
    free_dims,
    other_hooks,
    same_tensors,
)
from foregrad.runtime.sentinels import KEPT_TOO, MISS, PYTHON, REPLACED
from foregrad.runtime.wrapper_tensors import SameWrapper
from foregrad.torch_private.pytree import GivenObject, tree_flatten

_SHARED = "tensors share memory otherwise"
_CONSTANT = (bool, type(None), torch.dtype, torch.layout, torch.memory_format)


def _is_given_object(value: Any) -> bool:
    return type(value) is GivenObject


def slot_of(value: Any, slot: Any) -> Any:
    """What an object has in a slot; MISS if it was never set."""
    try:
        return slot.__get__(value)
    except AttributeError:
        return MISS


class GuardWriter:
    """Writes the checks of a call, and binds each input to its name `o3`."""

    def __init__(self, assumptions: Assumptions, source: Source) -> None:
        self.assumed = assumptions
        self.source = source
        self.reals = assumptions.reals
        self.objects: dict[int, str] = {}  # objects that the function gets copies of, by id: their names
        self.bound: dict[int, str] = {}  # real tensors by id: the name that they are bound to
        self.by_real = {id(self.reals[lifted]): lifted for lifted in assumptions.inputs}
        self.outer = {id(self.reals[outer]): outer for outer in assumptions.wrappers}
        self._num = 0
        self._named: set[int] = set()

    def write(self) -> None:
        self._state()
        self._python()
        self._arguments()
        self._objects()
        for variable in self.assumed.variables:
            self._variable(variable)
        self._given_and_kept()
        late = self.assumed.late
        for outer in self.assumed.wrappers:
            if id(self.reals[outer]) not in self.bound and outer not in late:
                self._wrapper(self._locate(outer), outer)
        for kept in self.assumed.generators:
            self.miss_if(f"{kept.emit(self.source)} is not {self.source.name('generator', kept.value)}")
        state = StateReader(self.assumed.declared, self.source, self.bound)
        grads = {grad for _, grad in self.assumed.grads if isinstance(grad, TracedInput)}
        parts = {part for outer in late for part in outer.parts}
        for lifted in self.assumed.inputs:
            if id(self.reals[lifted]) in self.assumed.declared.tensors or lifted in parts:
                continue
            in_a_place = lifted not in grads or lifted.alias.object in self.assumed.locations
            if id(self.reals[lifted]) not in self.bound and not lifted.is_hidden and in_a_place:
                self._bind(self.reals[lifted], self._locate(lifted))
        self._declared(state)
        for lifted in self.assumed.inputs:
            if lifted.is_hidden:
                member = next(m for m in self.assumed.inputs if m.base is lifted)
                self._bind(self.reals[lifted], f"{self.bound[id(self.reals[member])]}._base")
        for owner, grad in self.assumed.grads:
            self._grad(owner, grad)
        self._tensors()
        self._sizes()
        state.values(self.assumed.numbers)
        self._python_again()

    def _given_and_kept(self) -> None:
        """Arguments that were also kept somewhere are so again: else what is kept there is another input."""
        inputs: list[AnyInput] = [*self.assumed.inputs, *self.assumed.wrappers]
        for one in (one for one in inputs if id(self.reals[one]) in self.bound):
            location = self.assumed.locations.get(one if isinstance(one, TracedWrapper) else one.alias.object)
            if location is not None:
                write_same(self.source, location, self.bound[id(self.reals[one])])

    def _declared(self, state: StateReader) -> None:
        """Tensors of declared state are read where they are kept; parameters, which are keys there, come first."""
        slots = self.assumed.declared.tensors
        given = [i for i in self.assumed.inputs if id(self.reals[i]) in slots and id(self.reals[i]) in self.bound]
        found = [i for i in self.assumed.inputs if id(self.reals[i]) in slots and id(self.reals[i]) not in self.bound]
        for lifted in [i for i in found if i.alias.object in self.assumed.locations]:
            self._bind(self.reals[lifted], self._locate(lifted))
        state.containers()
        for lifted in given:
            with state.or_miss():
                self.miss_if(f"{state.slot(slots[id(self.reals[lifted])])} is not {self.bound[id(self.reals[lifted])]}")
        for lifted in [i for i in found if i.alias.object not in self.assumed.locations]:
            self._bind(self.reals[lifted], state.slot(slots[id(self.reals[lifted])]))
        for outer in self.assumed.wrappers:
            if id(self.reals[outer]) in slots and id(self.reals[outer]) not in self.bound:
                with state.or_miss():
                    self._wrapper(state.slot(slots[id(self.reals[outer])]), outer)
        state.identities()

    def compare(self, condition: str, expression: str, label: str, was: Any) -> None:
        self.source.check(check_that(condition, expression, label, was))

    def miss_if(self, condition: str, words: str = "", about: str = "") -> None:
        self.source.check(Check(condition, words, about=about))

    def _state(self) -> None:
        state = self.source.made("state_is_same", SameState.now())
        self.miss_if(f"not {state}()", about=state)
        inference = self.source.name("is_inference", torch.is_inference_mode_enabled)
        was = torch.is_inference_mode_enabled()
        self.compare(f"{inference}() is not {was}", f"{inference}()", "inference mode", was)
        if self.assumed.has_attention:
            kernels, chosen = self.source.name("attention_kernels", attention_kernels), attention_kernels()
            self.compare(f"{kernels}() != {chosen}", f"{kernels}()", "kernels of attention", chosen)

    def _python(self) -> None:
        """What the function read in Python."""
        self.miss_if(f"not {self.source.name(PYTHON, self.assumed.python)}.check()", about=PYTHON)

    def _python_again(self) -> None:
        """How to make that guard again; a file that is saved checks modules in its place."""
        checks = check_modules(self.source, self.assumed.modules, self.assumed.path)
        again = replace(self.assumed.python_again, module_checks=tuple(checks))
        self.source.made(PYTHON, again, self.assumed.python)

    # -- arguments --------------------------------------------------------------------------------------

    def _arguments(self) -> None:
        args, kwargs = self.assumed.args, self.assumed.kwargs
        count = len(args) + len(kwargs)
        different = f"len(args) != {len(args)} or len(kwargs) != {len(kwargs)}"
        self.compare(different, "len(args) + len(kwargs)", "number of arguments", count)
        if args:
            names = [self._argument_name(value) for value in args]
            self.source.line(f"{', '.join(names)}, = args")
            labels = dict(enumerate(self.assumed.names))
            for place, (name, value) in enumerate(zip(names, args, strict=True)):
                self._value(name, value, labels.get(place, f"args.{place}"))
        if self.assumed.keeps_order:
            self.compare(f"[*kwargs] != {[*kwargs]}", "[*kwargs]", "order of keyword arguments", [*kwargs])
        for key, value in kwargs.items():
            name = self._fresh()
            self.source.line(f"{name} = kwargs.get({key!r}, MISS)")
            self._value(name, value, key)

    def _variable(self, variable: Variable) -> None:
        """A variable of the closure that holds numbers, or containers of numbers and tensors."""
        if not isinstance(variable.value, torch.Tensor) and can_compare(variable.value):
            name = self._fresh()
            self.source.line(f"{name} = {variable.emit(self.source)}")
            self._value(name, variable.value, f"variable {variable.name}")

    def _argument_name(self, value: Any) -> str:
        """A tensor is bound to its name at once."""
        lifted = self.by_real.get(id(value)) if isinstance(value, torch.Tensor) else None
        name = f"o{lifted.alias.object}" if lifted is not None and id(value) not in self._named else self._fresh()
        self._named.add(id(value))
        return name

    def _fresh(self) -> str:
        self._num += 1
        return f"a{self._num}"

    def _value(self, name: str, value: Any, label: str) -> None:
        """Check that an argument is like the one that was captured; people know it by its label."""
        if isinstance(value, torch.Tensor):
            self._tensor(name, value, label)
        elif type(value) is GivenNumber:
            self.compare(f"type({name}) is not {value.kind.__name__}", name, label, f"any {value.kind.__name__}")
            self.source.line(f"{self.assumed.given[value.place]!r} = {name}")
        elif isinstance(value, _CONSTANT):
            self.compare(f"{name} is not {self.source.constant(value)}", name, label, value)
        elif isinstance(value, PLAIN):
            kind, known = self.source.name("type_of", type(value)), self.source.constant(value)
            same = f"{name} != {known}" if value == value else f"{name} == {name}"
            sign = f" or str({name}) != {str(value)!r}" if isinstance(value, (float, complex)) else ""
            self.compare(f"type({name}) is not {kind} or {same}{sign}", name, label, value)
        elif type(value) in (tuple, list):
            self._sequence(name, value, label)
        elif type(value) is dict:
            self._mapping(name, value, label)
        elif type(value) is GivenObject:
            self._object(name, value, label)
        else:
            self._other(name, value, label)

    def _object(self, name: str, value: GivenObject, label: str) -> None:
        """An object that the function gets a copy of; what it holds is read without code of its class."""
        known = self.objects.setdefault(id(value.real), name)
        if known != name:
            self.miss_if(f"{name} is not {known}", "two arguments are one object")
            return
        self.compare(f"type({name}) is not {self.source.name('type_of', value.kind)}", name, label, value.real)
        slots, table = slots_of(value.kind), self._fresh()
        names = tuple(one for one in value.names if one not in slots)
        if hasattr(value.real, "__dict__"):
            self.source.line(f"{table} = {name}.__dict__")
            self.compare(f"tuple({table}) != {self.source.name('keys', names)}", f"tuple({table})", label, names)
        for one in (one for one in slots if one not in value.names):
            read = f"{self.source.name('read', slot_of)}({name}, {self.source.name('slot', slots[one])})"
            self.miss_if(f"{read} is not MISS", f"{label}.{one} is set")
        for key, item in zip(value.names, value.values, strict=True):
            if isinstance(item, PLAIN) and not self._is_read(value.kind, key):
                continue
            inner, slot = self._fresh(), slots.get(key)
            read = f"{table}[{key!r}]"
            if slot is not None:
                read = f"{self.source.name('read', slot_of)}({name}, {self.source.name('slot', slot)})"
            self.source.line(f"{inner} = {read}")
            self._value(inner, item, f"{label}.{key}")

    def _is_read(self, kind: type, name: str) -> bool:
        """Whether code can have read an attribute: by name, by a computed name, or by a method that reads any."""
        reads = self.assumed.python_again.reads
        return name in reads.names or reads.computed or reads.computed_in_libraries or has_own_getattr(kind)

    def _objects(self) -> None:
        """Objects that were several are so again."""
        if len(self.objects) > 1:
            ids = ", ".join(f"id({name})" for name in self.objects.values())
            self.miss_if(f"len({{{ids}}}) != {len(self.objects)}", "two arguments are one object")

    def _tensor(self, name: str, value: Any, label: str) -> None:
        if id(value) in self.bound:
            self.miss_if(f"{name} is not {self.bound[id(value)]}")
        elif id(value) in self.by_real:
            self._bind(value, name)
        elif id(value) in self.outer:
            self._wrapper(name, self.outer[id(value)])
        else:  # in a container of the closure, and never used
            self.compare(f"type({name}) is not {self.source.name('type_of', type(value))}", name, label, value)

    def _sequence(self, name: str, value: Any, label: str) -> None:
        kind = "tuple" if type(value) is tuple else "list"
        self.compare(f"type({name}) is not {kind} or len({name}) != {len(value)}", name, label, value)
        names = [self._fresh() for _ in value]
        if names:
            self.source.line(f"{', '.join(names)}, = {name}")
        for place, (inner, item) in enumerate(zip(names, value, strict=True)):
            self._value(inner, item, f"{label}.{place}")

    def _mapping(self, name: str, value: dict[Any, Any], label: str) -> None:
        keys = self.source.name("keys", tuple(value))
        self.compare(f"type({name}) is not dict or tuple({name}) != {keys}", name, label, value)
        for key, item in value.items():
            inner = self._fresh()
            self.source.line(f"{inner} = {name}[{self.source.constant(key)}]")
            self._value(inner, item, f"{label}.{key}")

    def _other(self, name: str, value: Any, label: str) -> None:
        """A container known to pytree is taken apart; any other object must be the same one, with the same fields."""
        leaves, structure = tree_flatten(value, _is_given_object)
        if isinstance(value, slice):
            self.compare(f"type({name}) is not slice", name, label, value)
            self._value(f"({name}.start, {name}.stop, {name}.step)", (value.start, value.stop, value.step), label)
        elif structure.is_leaf():
            if is_dataclass(value):
                self.compare(f"type({name}) is not {self.source.name('type_of', type(value))}", name, label, value)
            else:
                self.compare(f"{name} is not {self.source.name('object', value)}", name, label, value)
                self._attributes(name, value, label)
            if is_dataclass(value):
                for one in fields(value):
                    inner = self._fresh()
                    self.source.line(f"{inner} = {name}.{one.name}")
                    self._value(inner, getattr(value, one.name), f"{label}.{one.name}")
        if structure.is_leaf():
            return
        inner, found = self._fresh(), self._fresh()
        flatten = self.source.name("tree_flatten", tree_flatten)
        self.compare(f"type({name}) is not {self.source.name('type_of', type(value))}", name, label, value)
        self.source.line(f"{inner}, {found} = {flatten}({name})")
        self.compare(f"{found} != {self.source.name('structure', structure)}", name, label, value)
        self._sequence(inner, leaves, label)

    def _attributes(self, name: str, value: Any, label: str) -> None:
        """Plain attributes of an object that the function was given."""
        if isinstance(value, (type, ModuleType, FunctionType, torch.nn.Module)):
            return
        for key, item in getattr(value, "__dict__", {}).items():
            if can_compare(item) and not isinstance(item, torch.Tensor):
                inner = self._fresh()
                self.source.line(f"{inner} = {name}.__dict__.get({key!r}, MISS)")
                self._value(inner, item, f"{label}.{key}")

    # -- tensors ----------------------------------------------------------------------------------------

    def _bind(self, real: Any, expression: str) -> None:
        name = f"o{self.by_real[id(real)].alias.object}"
        if name != expression:
            self.source.line(f"{name} = {expression}")
        self.bound[id(real)] = name

    def _wrapper(self, name: str, outer: TracedWrapper) -> None:
        """Check a tensor that wraps others, and bind its parts."""
        self.bound[id(self.reals[outer])] = whole = f"w{outer.index}"
        self.source.line(f"{whole} = {name}")
        self.miss_if(f"not {self.source.name('wrapper_is_same', SameWrapper.of(outer))}({whole})")
        if outer in self.assumed.hooks:
            self.source.check(other_hooks(self.source, whole, self.assumed.hooks[outer]))
        for lifted, path in zip(outer.parts, outer.paths, strict=True):
            self._tensor(f"{whole}{path}", self.reals[lifted], f"{outer.name}{path}")

    def _locate(self, lifted: AnyInput) -> str:
        location = self.assumed.locations.get(lifted if isinstance(lifted, TracedWrapper) else lifted.alias.object)
        if location is None:
            return self.source.name("tensor", self.reals[lifted])
        name = self._fresh()
        with self.source.block("try:"):
            self.source.line(f"{name} = {location.emit(self.source)}")
        with self.source.block("except (KeyError, ValueError):"):
            self.source.line("return MISS")
        for other in location.other_places:
            about = "" if isinstance(other.owner, torch.nn.Module) else KEPT_TOO
            self.miss_if(f"{other.emit(self.source, missing_ok=True)} is not {name}", about=about)
        return name

    def _grad(self, lifted: AnyInput, grad: AnyInput | OldSparseGrad | None) -> None:
        """The .grad of an input: None, an input that is bound already, or an input that it binds."""
        expression = f"{self.bound[id(self.reals[lifted])]}.grad"
        if not lifted.is_leaf:
            expression = f"{self.source.name('grad_of', grad_of)}({self.bound[id(self.reals[lifted])]})"
        if grad is None:
            self.compare(f"{expression} is not None", expression, f"{lifted.name}.grad", None)
        elif isinstance(grad, OldSparseGrad):
            sparse = self.source.constant(torch.sparse_coo)
            self.miss_if(f"getattr({expression}, 'layout', None) is not {sparse}")
        elif id(self.reals[grad]) in self.bound:
            self.miss_if(f"{expression} is not {self.bound[id(self.reals[grad])]}")
        elif isinstance(grad, TracedWrapper):
            self._wrapper(expression, grad)
        else:
            self._bind(self.reals[grad], expression)
            about = REPLACED if grad.alias.object in self.assumed.unread else ""
            self.miss_if(f"{self.bound[id(self.reals[grad])]} is None", about=about)

    def _tensors(self) -> None:
        used = [lifted for lifted in self.assumed.inputs if lifted.alias.object not in self.assumed.unread]
        tensors = [(lifted, self.bound[id(self.reals[lifted])]) for lifted in used]
        if not tensors:
            return
        reals: list[Any] = [self.reals[lifted] for lifted, _ in tensors]
        names = [name for _, name in tensors]
        free = () if self.assumed.sizes is None else tuple(free_dims(lifted.spec) for lifted, _ in tensors)
        same = SameTensors.of(reals, free, tuple(lifted.name for lifted, _ in tensors))
        if same.is_enough_for(reals):
            same_ones = self.source.made("tensors_are_same", same)
        else:
            same_ones = self.source.name("tensors_are_same", same_tensors(reals, free))
        may_be_no_tensors = bool(self.assumed.declared.tensors)
        with self.source.block("try:") if may_be_no_tensors else nullcontext():
            labels, given = one_line(", ".join(same.names)), ", ".join(names)
            self.source.check(Check(f"not {same_ones}({given})", labels, looked_at=f"({given},)", about=same_ones))
        if may_be_no_tensors:
            self.source.line("except TypeError: return MISS")
        leaves = [f"{name}.is_leaf is not {lifted.is_leaf}" for lifted, name in tensors if lifted.required_grad]
        if leaves:
            self.miss_if(" or ".join(leaves), "`is_leaf` of a tensor differs from the capture")
        self._attached([(self.reals[lifted], name) for lifted, name in tensors if lifted.is_argument])
        for lifted, name in tensors:
            if lifted.is_grown:
                self.miss_if(f"{name}.untyped_storage().nbytes() != {lifted.num_bytes}")
            if lifted in self.assumed.hooks:
                self.source.check(other_hooks(self.source, name, self.assumed.hooks[lifted]))
            if lifted in self.assumed.answers:
                answers = self.source.name("answers", tuple(self.assumed.answers[lifted].items()))
                asked = f"{self.source.name('answers_otherwise', answers_otherwise)}({name}, {answers})"
                self.miss_if(asked, "a tensor says something else where the function asks it")
            if lifted in self.assumed.passed_by:
                self.miss_if(f"{self.source.name('keeps_gradient', keeps_gradient)}({name})")
            if lifted.alias.object in self.assumed.offset_sensitive:
                self.miss_if(f"{name}.storage_offset() != {lifted.offset}")
            if gets_no_gradient(self.reals[lifted]):
                self.miss_if(f"not {self.source.name('gets_no_gradient', gets_no_gradient)}({name})")
            if lifted.base is not None and not lifted.is_leaf:
                ends = self.source.name("leads_nowhere", leads_nowhere)
                self.miss_if(f"{ends}({name}) is not {leads_nowhere(self.reals[lifted])}")
            if lifted.base is not None and self.assumed.checks_overlap:
                self.miss_if(f"{name}._base is not {self.bound[id(self.reals[lifted.base])]}")
        for leads, inputs in self.assumed.apart:
            asked = ", ".join(self.bound[id(self.reals[one])] for one in inputs)
            self.miss_if(f"{self.source.name(leads.__name__, leads)}({asked})")
        for first, other in in_one_place(tensors):
            where = self.source.name("address", address)
            self.miss_if(f"{where}({first}) != {where}({other})", _SHARED)
        if self.assumed.checks_overlap:
            self._counters([(lifted, name) for lifted, name in tensors if lifted.base is None])
        if self.assumed.checks_overlap and len(reals) > 1:
            overlap = Overlap.of(reals) if self.assumed.sizes is None else SamePattern.of(reals)
            self.miss_if(f"not {self.source.name('overlap_is_same', overlap)}(({', '.join(names)}))", _SHARED)

    def _attached(self, tensors: list[tuple[Any, str]]) -> None:
        """Attributes that arguments have in Python: none, or of those that code asks for the same."""
        bare = [name for real, name in tensors if not vars(real)]
        if bare:
            self.miss_if(" or ".join(f"{name}.__dict__" for name in bare))
        for real, name in tensors:
            for key, value in attributes_of(real).items():
                if key in self.assumed.python_again.reads.names:
                    now, was = f"{name}.__dict__.get({key!r})", self.source.name("attribute", value)
                    self.compare(f"{now} is not {was}", now, key, value)

    def _counters(self, tensors: list[tuple[TracedInput, str]]) -> None:
        """Which tensors of one dtype in one memory, none of them a view of another, share a version counter."""
        by_storage: dict[Any, list[tuple[TracedInput, str]]] = {}
        for lifted, name in tensors:
            by_storage.setdefault((lifted.alias.storage, lifted.spec.dtype), []).append((lifted, name))
        for (one, name), (other, other_name) in (p for group in by_storage.values() for p in combinations(group, 2)):
            is_shared = (one.counter or one) is (other.counter or other)
            shares = f"{self.source.name('shares_version', shares_version)}({name}, {other_name})"
            self.miss_if(f"not {shares}" if is_shared else shares, "tensors share a version counter otherwise")

    def check_sizes(self) -> None:
        """Check what is assumed about sizes and was not checked so far: what compilers assume comes after the rest."""
        sizes = self.assumed.sizes
        new = [] if sizes is None else sizes.newly_checked()
        if not new:
            return
        with self.source.block("try:"):
            for assumed in new:
                self.miss_if(f"not {assumed.code}")
        self.source.line("except ZeroDivisionError: return MISS")

    def _sizes(self) -> None:
        """Bind sizes that vary to their names, and check what was assumed about them."""
        if self.assumed.sizes is None:
            return
        for symbol in self.assumed.sizes.symbols:
            self.source.line(f"{symbol.code} = {self.bound[id(symbol.tensor())]}.size({symbol.dim})")
            self.miss_if(f"{symbol.code} < 2")
        self.check_sizes()
        for lifted in self.assumed.inputs:
            if free_dims(lifted.spec)[1]:
                self.miss_if(f"{self.bound[id(self.reals[lifted])]}.stride() != {lifted.spec.stride}")

"""Objects of Python classes among the arguments: what the function reads in them, and what it changes there."""

import collections
import copy
import functools
import operator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import register_pytree_node

import foregrad as fg
from tests.compare import also_compiled, compiled, leaf


class Box:
    def __init__(self, t, **others):
        self.t = t
        vars(self).update(others)


class Slotted:
    __slots__ = ("__hidden", "items", "t")

    def __init__(self, t):
        self.t, self.__hidden, self.items = t, t * 3, [t + 1]

    @property
    def hidden(self):
        return self.__hidden

    def hide(self, t):
        self.__hidden = t


@dataclass
class Batch:
    x: torch.Tensor
    scale: float = 2.0
    seen: list[Any] = field(default_factory=list)


class Shadowed:
    def __init__(self, t):
        self.__dict__["t"] = t

    @property
    def t(self):
        return self.__dict__["t"] + 1

    @t.setter
    def t(self, value):
        self.__dict__["t"] = value * 2


class Guarded:
    """Counts what is stored, as some classes do."""

    def __init__(self, t):
        object.__setattr__(self, "num_stored", 0)
        object.__setattr__(self, "t", t)

    def __setattr__(self, name, value):
        object.__setattr__(self, name, value)
        object.__setattr__(self, "num_stored", self.num_stored + 1)


def values(one: Any) -> Any:
    """Everything that an object holds, as plain data."""
    if isinstance(one, torch.Tensor):
        return [type(one).__name__, one.tolist(), one.requires_grad, one._version]
    if isinstance(one, dict):
        return {key: values(item) for key, item in one.items()}
    if isinstance(one, (list, tuple, collections.deque)):
        return [type(one).__name__, *map(values, one)]
    if isinstance(one, (int, float, str, type(None), type)):
        return one
    slots = [name for kind in type(one).__mro__ for name in vars(kind).get("__slots__", ())]
    names = [f"_{type(one).__name__}{name}" if name.startswith("__") else name for name in slots]
    held = {name: getattr(one, name) for name in names if hasattr(one, name)}
    return {"type": type(one).__name__, **values({**held, **getattr(one, "__dict__", {})})}


def stores(box):
    box.t = box.t * 2
    return box.t + 1


def stores_new(box):
    box.u = box.t * 2
    return box.u.sum()


def deletes(box):
    y = box.t * 2
    del box.t
    return y


def grows(box):
    box.items.append(box.t.sin())
    box.items.append(Box(box.t.cos(), n=3))
    return box.t + 1


def writes(box):
    box.t.mul_(2)
    box.last = box.t
    return box.t + 1


def views(box):
    box.head = box.t[:2]
    return box.t * 2


def nests(box):
    box.inner.t = box.inner.t + box.t
    box.inner.table["new"] = {"a": [box.t, (box.inner.other,)]}
    return box.inner.t


def counts(box):
    box.step += 1
    return box.t * box.step


def swaps(box):
    box.t, box.u = box.u, box.t
    return box.t - box.u


def of_slots(slotted):
    slotted.hide(slotted.hidden + slotted.t)
    slotted.items.append(slotted.t)
    slotted.t = slotted.hidden
    return slotted.t


def of_dataclass(batch):
    batch.seen.append(batch.x * batch.scale)
    batch.x = batch.x + 1
    return batch.x


def through_properties(shadowed):
    shadowed.t = shadowed.t * 3
    return shadowed.t


def of_dicts(box):
    box.table.pop("a")
    box.table["b"] = box.t * 2
    box.queue.appendleft(box.t + 1)
    return box.t * 3


STORIES = {
    "store": (stores, lambda t: Box(t)),
    "new attribute": (stores_new, lambda t: Box(t)),
    "delete": (deletes, lambda t: Box(t)),
    "list": (grows, lambda t: Box(t, items=[])),
    "write": (writes, lambda t: Box(t * 1)),
    "view": (views, lambda t: Box(t * 1)),
    "nested": (nests, lambda t: Box(t, inner=Box(t * 3, table={}, other=Box(t)))),
    "count": (counts, lambda t: Box(t, step=1)),
    "swap": (swaps, lambda t: Box(t, u=t + 1)),
    "slots": (of_slots, Slotted),
    "dataclass": (of_dataclass, Batch),
    "properties": (through_properties, Shadowed),
    "own setattr": (stores, Guarded),
    "containers": (of_dicts, lambda t: Box(t, table={"a": t, "c": 1}, queue=collections.deque([t], 2))),
}


@pytest.mark.parametrize(("function", "make"), STORIES.values(), ids=STORIES)
def test_what_the_function_changes_in_it(function, make):
    wrapped = compiled(function)
    for _ in range(3):
        t = leaf(3)
        mine, theirs = make(t), make(t.detach().clone().requires_grad_())
        found, expected = wrapped(mine), function(theirs)
        assert torch.equal(found, expected)
        assert values(mine) == values(theirs)
    assert len(wrapped.captures) == 1


@also_compiled
def test_gradients_pass_through_what_was_stored():
    def run(function):
        torch.manual_seed(0)
        t = leaf(3)
        box = Box(t)
        first, second = function(box), function(box)
        return torch.autograd.grad((first * second + box.t).sum(), t)[0]

    torch.testing.assert_close(run(compiled(stores)), run(stores))


def test_the_result_is_the_argument():
    def same(box, batch):
        box.t = box.t + 1
        batch["y"] = batch["x"] * 2
        return box, batch, [box.items, box], (batch["y"],)

    function = compiled(same)
    for _ in range(2):
        box, batch = Box(leaf(3), items=[1]), {"x": leaf(2)}
        one, other, (items, again), (y,) = function(box, batch)
        assert one is box
        assert again is box
        assert other is batch
        assert items is box.items
        assert y is batch["y"]
    assert len(function.captures) == 1


def test_one_object_at_two_places():
    def both(a, b):
        a.t = a.t * 2
        b.t = b.t + 1
        return a.t + b.t, a is b

    function = compiled(both)
    for is_same in (True, False, True, False):
        x = leaf(3)
        a, c = Box(x), Box(x)
        b, d = (a, c) if is_same else (Box(x * 3), Box(x * 3))
        found, expected = function(a, b), both(c, d)
        assert torch.equal(found[0], expected[0])
        assert found[1] is is_same
        assert torch.equal(b.t, d.t)
    assert len(function.captures) == 2


def test_one_list_at_two_places():
    def both(a, b):
        a.append(1)
        b.append(len(a))
        return torch.ones(2)

    function = compiled(both)
    for is_same in (True, False, True):
        a = []
        b = a if is_same else []
        c = []
        d = c if is_same else []
        function(a, b)
        both(c, d)
        assert (a, b) == (c, d)


def test_another_class_or_attribute_is_captured_again():
    class Other(Box):
        pass

    def reads(box):
        return box.t * getattr(box, "scale", 1) * (3 if isinstance(box, Other) else 1)

    function, x = compiled(reads), leaf(3)
    for box in (Box(x), Box(x, scale=2), Box(x, scale=3), Other(x), Box(x), Other(x)):
        assert torch.equal(function(box), reads(box))
    assert len(function.captures) == 4


def test_a_refused_call_leaves_it_as_it_was():
    def fails(box):
        box.t = box.t * 2
        box.items.append(box.t)
        box.table["k"] = 1
        return box.t if box.t.sum() > 0 else box

    x = leaf(3)
    for box in (Box(x, items=[], table={}), Box(None, items=[x], table={})):
        before = copy.copy(vars(box))
        with pytest.raises(Exception, match=r"needed in Python|NoneType"):
            compiled(fails, questions="error")(box)
        assert vars(box) == before
        assert len(box.items) == (box.t is None)
        assert box.table == {}


def test_an_empty_object_is_filled():
    def fills(box, x):
        box.t = x * 2
        box.items.append(x)
        return box

    function = compiled(fills)
    for _ in range(2):
        box, x = Box(None, items=[]), leaf(3)
        assert function(box, x) is box
        assert torch.equal(box.t, x * 2)
        assert box.items[0] is x
    assert len(function.captures) == 1


KEPT = Box(torch.ones(3))


def test_an_object_that_is_kept_elsewhere_too():
    def reads(box):
        return box.t * 2 if box is KEPT else box.t * 3

    function = compiled(reads)
    assert torch.equal(function(KEPT), KEPT.t * 2)
    assert torch.equal(function(Box(KEPT.t)), KEPT.t * 3)

    def stores_there(box):
        box.t = box.t * 2
        return KEPT.t + 1

    before = KEPT.t
    with pytest.raises(fg.CaptureError, match="stores a tensor"):
        compiled(stores_there)(KEPT)
    assert KEPT.t is before


def test_an_object_that_holds_a_module_stays_itself():
    def reads(box):
        return box.model(box.t)

    box = Box(leaf(2, 3), model=nn.Linear(3, 3))
    assert torch.equal(compiled(reads)(box), reads(box))


class Holder(nn.Module):
    def __init__(self):
        super().__init__()
        self.items, self.table = [1, 2], {"a": torch.ones(2)}

    def forward(self, x):
        return x * 2, self.items, {"inner": self.table}


def test_lists_and_dicts_that_were_there_come_back():
    model = Holder()
    function = compiled(model)
    for _ in range(2):
        _, items, found = function(leaf(3))
        assert items is model.items
        assert found["inner"] is model.table
    model.items = [1, 2]
    assert function(leaf(3))[1] is model.items
    model.items.append(3)
    assert function(leaf(3))[1] is model.items


def test_one_object_twice_in_a_result_is_one_object():
    def twice(x):
        box, items = Box(x * 2), [x]
        return box, [box, items], {"items": items, "inner": (box,)}

    function = compiled(twice)
    for _ in range(2):
        x = leaf(3)
        box, (again, items), found = function(x)
        assert again is box
        assert found["inner"][0] is box
        assert found["items"] is items
        assert torch.equal(box.t, x * 2)


def test_an_object_in_a_result_that_leads_to_itself():
    def loops(x):
        box = Box(x * 2, children=[])
        box.children.append(Box(x * 3, parent=box))
        return box

    box = compiled(loops)(leaf(3))
    assert box.children[0].parent is box


def test_sizes_vary_in_objects():
    def grows_along(box):
        box.t = torch.cat([box.t, box.t[:1]])
        return box.t.sum()

    function, box = compiled(grows_along), Box(leaf(3))
    other = Box(box.t)
    for _ in range(6):
        assert torch.equal(function(box), grows_along(other))
        assert torch.equal(box.t, other.t)
    assert len(function.captures) <= 3


def test_a_step_takes_objects():
    model = nn.Linear(3, 1)
    mirror = copy.deepcopy(model)
    optimizers = [torch.optim.SGD(one.parameters(), 0.1) for one in (model, mirror)]

    def train(model, optimizer, box):
        optimizer.zero_grad()
        loss = model(box.t).square().mean()
        loss.backward()
        optimizer.step()
        box.loss = loss.detach()
        return box

    step = fg.step(model, optimizers[0], backend="eager", cache=False)(lambda box: train(model, optimizers[0], box))
    for _ in range(3):
        one = Box(torch.randn(4, 3))
        other = Box(one.t)
        assert step(one) is one
        train(mirror, optimizers[1], other)
        assert torch.equal(one.loss, other.loss)
    assert torch.equal(model.weight, mirror.weight)


class Scaled(Box):
    scale = 2.0

    def scaled(self):
        return self.t * self.scale


def test_an_attribute_of_its_class_is_read_anew():
    function, x = compiled(lambda box: box.t * box.scale + box.scaled()), leaf(3)
    try:
        for scale in (2.0, 3.0):
            Scaled.scale = scale
            assert torch.equal(function(Scaled(x)), x * scale + x * scale)
    finally:
        Scaled.scale = 2.0


SEEN: list[Any] = []


@pytest.mark.parametrize("given", [lambda x: Box(x), lambda x: Box(None), lambda x: [x], lambda x: {"a": 1}])
def test_what_is_given_and_kept_outside_is_refused(given):
    def keeps(x, one):
        SEEN.append(one)
        if isinstance(one, Box):
            one.t = x
        return x * 2

    x = leaf(3)
    with pytest.raises(fg.CaptureError, match="SEEN"):
        compiled(keeps)(x, given(x))
    assert SEEN == []


def test_what_a_backward_changes_in_it_is_refused():
    def hooks(box):
        y = box.t * 2
        y.register_hook(lambda gradient: box.arrived.append(1))
        return y.sum()

    result = compiled(hooks)(Box(leaf(3), arrived=[]))
    with pytest.raises(fg.CaptureError, match=r"a backward changes `box\.arrived"):
        result.backward()


def test_a_method_bound_to_the_object_itself():
    class Bound(Box):
        def double(self):
            self.t = self.t * 2
            return self.t

    box = Bound(leaf(3))
    box.call = box.double
    with pytest.raises(fg.CaptureError, match="stores a tensor"):
        compiled(lambda box: box.call() + box.t)(box)
    assert box.t.is_leaf


def test_another_class_is_refused():
    def changes(box):
        box.__class__ = Scaled
        return box.scaled()

    box = Box(leaf(3))
    with pytest.raises(fg.CaptureError, match="another class"):
        compiled(changes)(box)
    assert type(box) is Box


def test_an_iterator_moves_once():
    def reads(box, numbers):
        box.t = torch.ones(3) * next(numbers)
        return box.t + 1

    numbers, box = iter(range(5)), Box(None)
    try:
        compiled(reads)(box, numbers)
    except fg.CaptureError:
        assert box.t is None
    else:
        assert box.t.tolist() == [0.0] * 3


def test_an_attribute_that_nobody_reads_may_change():
    function, x = compiled(lambda box: box.t * box.scale), leaf(3)
    for number in range(4):
        box = Box(x, scale=2, number=number)
        assert torch.equal(function(box), x * 2)
    assert len(function.captures) == 1


def test_a_distribution():
    def draws_nothing(normal, x):
        return normal.log_prob(x) + normal.variance, normal.entropy()

    function = compiled(draws_nothing)
    for _ in range(2):
        x = leaf(3)
        normal = torch.distributions.Normal(x, x.exp(), validate_args=False)
        found, expected = function(normal, x + 1), draws_nothing(normal, x + 1)
        assert torch.equal(found[0], expected[0])
        assert torch.equal(found[1], expected[1])
    assert len(function.captures) == 1


def test_objects_in_containers_and_by_name():
    Pair = collections.namedtuple("Pair", "left right")

    def changes(pair, *more, table):
        pair.left.t = pair.right[0].t * 2
        table["box"].t, more[0][0].t = more[0][0].t, table["box"].t
        table["new"] = pair.left
        return pair.left.t, [table["box"], pair.left]

    function = compiled(changes)
    for _ in range(2):
        x = leaf(3)

        def make(x=x):
            pair = Pair(Box(x), [Box(x + 1)])
            return (pair, [Box(x * 3)]), {"table": {"box": Box(x.sin())}}

        (args, kwargs), (others, other_kwargs) = make(), make()
        found, expected = function(*args, **kwargs), changes(*others, **other_kwargs)
        assert torch.equal(found[0], expected[0])
        assert values((args, kwargs)) == values((others, other_kwargs))
        assert found[1][0] is kwargs["table"]["box"]
        assert kwargs["table"]["new"] is args[0].left
    assert len(function.captures) == 1


def test_what_a_property_keeps_is_kept():
    class Lazy(Box):
        @functools.cached_property
        def norm(self):
            return self.t.square().sum()

    function = compiled(lambda box: box.t / box.norm)
    for _ in range(2):
        box = Lazy(leaf(3))
        assert torch.equal(function(box), box.t / box.t.square().sum())
        assert torch.equal(vars(box)["norm"], box.t.square().sum())
    assert torch.equal(function(box), box.t / box.norm)


class Moded:
    __match_args__ = ("x", "mode")

    def __init__(self, x, mode):
        self.x, self.mode = x, mode


mode_of = operator.attrgetter("mode")
TEXT = "{0.mode}"


def by_position(one):
    match one:
        case Moded(x, "double"):
            return x * 2
        case Moded(x, _):
            return x * 3


READERS = {
    "a getter": lambda one: one.x * (2 if mode_of(one) == "double" else 3),
    "a place in a pattern": by_position,
    "a text": lambda one: one.x * (2 if f"{one.mode}" == "double" else 3),
    "a text in a variable": lambda one: one.x * (2 if TEXT.format(one) == "double" else 3),
}


@pytest.mark.parametrize("name", READERS)
def test_an_attribute_that_is_read_in_another_way_than_by_name(name):
    function = fg.compile(READERS[name], backend="eager")
    for mode in ("double", "triple", "double"):
        assert function(Moded(torch.ones(2), mode)).tolist() == [2.0 if mode == "double" else 3.0] * 2


class Batch:
    """A container that gives new lists whenever it is taken apart."""

    def __init__(self, first, second):
        self.first, self.second = first, second


register_pytree_node(
    Batch, lambda batch: ([list(batch.first), list(batch.second)], None), lambda parts, _: Batch(*parts)
)


def test_a_container_that_makes_its_parts_anew():
    def function(batch):
        return batch.first[0] * 2 + batch.second[0], batch.first

    compiled = fg.compile(function, backend="eager")
    for value in (1.0, 2.0, 3.0):
        batch = Batch([torch.full((2,), value)], [torch.ones(2)])
        found, first = compiled(batch)
        assert found.tolist() == [value * 2 + 1] * 2
        assert first[0].tolist() == [value] * 2
    assert len(compiled.captures) == 1


def test_a_change_of_what_a_container_makes_anew_is_refused():
    def function(batch):
        batch.first.append(batch.first[0] * 2)
        return batch.first[0]

    with pytest.raises(fg.CaptureError, match="makes anew"):
        fg.compile(function, backend="eager")(Batch([torch.ones(2)], []))


def _puts_a_view(o):
    o.inner.kept = o.t.detach()


def _puts_a_tensor(o):
    o.inner.kept = o.t * 2


def _puts_the_object(o):
    o.inner.kept = o


def _puts_all(o):
    o.inner.made, o.inner.kept = o.t * 3, o
    return o.inner


@pytest.mark.parametrize("function", [_puts_a_view, _puts_a_tensor, _puts_the_object, _puts_all])
@pytest.mark.parametrize("times", [1, 2])
def test_what_is_put_into_an_object_inside_an_object_with_tensors(function, times):
    f = compiled(lambda *given: function(given[0]))
    for number in (1.0, 2.0):
        o, other = (Box(torch.full((2,), number), inner=Empty()) for _ in range(2))
        result, expected = f(*[o] * times), function(other)
        kept = o.inner.kept
        assert (kept is o) is (other.inner.kept is other)
        assert torch.equal(*((one.t if isinstance(one, Box) else one) for one in (kept, other.inner.kept)))
        assert (result is o.inner) is (expected is other.inner)


class Empty:
    pass


def test_an_argument_that_leads_to_itself_is_refused():
    items, named = [torch.ones(1)], {"t": torch.ones(1)}
    items.append(items)
    named["self"] = named
    for argument in (items, named):
        with pytest.raises(fg.CaptureError, match="leads to itself"):
            compiled(lambda given: 1)(argument)


def _writes_the_dict(box, shared, t):
    shared["n"] = 5
    return t * box.kept["n"]


def _grows_the_list(box, shared, t):
    shared.append(t * 2)
    return t * 0 + sum(x.sum() for x in box.kept)


def _compares(box, shared, t):
    return t * (2 if box.kept is shared else 3)


@pytest.mark.parametrize(
    ("function", "make"), [(_writes_the_dict, lambda: {"n": 1}), (_grows_the_list, list), (_compares, dict)]
)
def test_a_list_or_dict_that_is_an_argument_and_in_an_object_is_one(function, make):
    f = compiled(function)
    for number in (1.0, 2.0):
        found = []
        for one in (f, function):
            box = Empty()
            box.kept = make()
            found.append((one(box, box.kept, torch.full((2,), number)).tolist(), str(box.kept)))
        assert found[0] == found[1]


def test_a_list_that_is_returned_at_two_places():
    before = [1, 2]
    f = compiled(lambda x: (x * 2, before, [before]))
    for number in (1.0, 2.0):
        _, one, (other,) = f(torch.full((2,), number))
        assert one == [1, 2]
        assert one is other


def test_one_object_at_two_places_with_a_number_that_changes():
    f = compiled(lambda boxes, n: boxes[0].t * boxes[1].n * n)
    for n in (3, 4, 5):
        box, x = Box(torch.ones(3, requires_grad=True), n=n), n + 1
        assert torch.equal(f([box, box], x), box.t * n * x)
    assert len(f.captures) == 2

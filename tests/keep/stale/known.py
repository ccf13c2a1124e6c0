"""Forms that are not right yet. The tests fail when one of them has become right, so that this goes down to nothing."""

from __future__ import annotations

from tests.keep.stale.packages import Package

#: The form, and what becomes of it by itself.
KNOWN: dict[str, str] = {
    "value: genfromtxt": "stale",
    "value: worker of a loader": "stale",
    "value: line of a traceback": "stale",
    "container: attribute of a partial": "stale",
    "container: attribute of a lru cache": "stale",
    "container: exception": "stale",
    "number: fill value of a masked array": "stale",
    "number: mask": "stale",
    "number: pattern": "stale",
    "number: pattern that matches": "stale",
    "number: original bases": "stale",
    "number: bound of a type variable": "stale",
    "number: virtual subclass": "stale",
    "number: subclass hook": "stale",
    "patch: attribute of torch.ops": "stale",
    "patch: attribute of a function of json": "stale",
    "patch: attribute of logging.root": "stale",
    "patch: attribute of a function of fakelib": "stale",
    "patch: option of fakelib": "stale",
    "patch: flag of fakelib": "stale",
    "patch: state of fakelib": "stale",
    "patch: class of fakelib": "stale",
    "patch: function of fakelib": "stale",
    "patch: method of fakelib": "stale",
    "patch: default of fakelib": "stale",
    "patch: keyword default of fakelib": "stale",
    "patch: code of fakelib": "stale",
    "patch: constant of a dependency": "stale",
    "patch: instance of fakelib": "stale",
    "patch: cached by fakelib": "stale",
    "patch: context of fakelib": "stale",
    "patch: environment of fakelib": "stale",
    "patch: default of torch.nn.functional": "stale",
    "patch: method of Tensor": "wrong",
    "patch: vector norm": "stale",
    "patch: divergence": "stale",
    "reader: pytree node": "stale",
    "container: cycle": "error",
}

#: Beginnings of names of forms that are stale in some compositions.
IN_COMPOSITIONS: tuple[str, ...] = ("patch: ", "container: getattribute", "number: device")


def is_known(package: Package) -> bool:
    """Whether a package holds a form that is not right yet."""
    names = [level.form for chain in package.chains for level in chain]
    return any(name in KNOWN or name.startswith(IN_COMPOSITIONS) for name in names)

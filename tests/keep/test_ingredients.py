"""Keys as data, and what is said of two that differ."""

from foregrad.cache.key.ingredients import Ingredient, Key, differences, nearest


def key(**texts: str) -> Key:
    return Key(tuple(Ingredient.of(name, text) for name, text in texts.items()))


def test_a_digest_does_not_depend_on_the_order_of_ingredients():
    assert key(a="1", b="2").digest == key(b="2", a="1").digest
    assert key(a="1", b="2").digest != key(a="2", b="1").digest


def test_a_description_is_no_part_of_a_digest():
    one, two = Ingredient.of("a", "text", "shown"), Ingredient.of("a", "text", "shown otherwise")
    assert Key((one,)).digest == Key((two,)).digest
    assert differences(Key((one,)), Key((two,))) == []


def test_a_value_that_differs_is_told_in_one_line():
    (found,) = differences(key(torch="2.13.0", lr="float"), key(torch="2.14.0", lr="float"))
    assert (found.name, found.old, found.new) == ("torch", "2.13.0", "2.14.0")
    assert str(found) == "torch: 2.13.0 -> 2.14.0"


def test_a_text_that_differs_is_told_by_its_lines():
    (found,) = differences(key(f="def f(x):\n    return x\n"), key(f="def f(x):\n    return x + 1\n"))
    assert str(found).splitlines()[0] == "f differs:"
    assert "  -    return x" in str(found).splitlines()
    assert "  +    return x + 1" in str(found).splitlines()


def test_a_long_difference_is_cut_short():
    old, new = ("\n".join(f"{word} {i}" for i in range(50)) for word in ("old", "new"))
    (found,) = differences(key(f=old), key(f=new))
    assert len(str(found).splitlines()) < 20
    assert "more lines" in str(found)


def test_what_only_one_key_has_is_told():
    gone, new = differences(key(a="1", b="2"), key(b="2", c="3"))[::-1]
    assert str(new) == "c is new: 3"
    assert str(gone) == "a is gone: 1"


def test_the_nearest_key_differs_in_the_fewest_ingredients():
    near, far = key(a="1", b="2", c="4"), key(a="5", b="6", c="7")
    assert nearest(key(a="1", b="2", c="3"), [far, near]) is near
    assert nearest(key(a="1"), []) is None


def test_a_key_survives_as_plain_data():
    one = key(a="1", b="line\nline")
    assert Key.from_json(one.as_json()) == one

"""A table of keys says what each key is; what it does not understand is an error."""

from __future__ import annotations

import pytest

from nilometer.config import ConfigKey, ConfigKind, ConfigValue, key_table

TABLE = """
a.number: long -1..10_000 dynamic by:log.a.number = 5_000
    What it means
    in two lines.
a.share: double 0.1..1
    No default.
a.list: list (x|y) =
    An empty default.
a.text: string secret = one = two
    A default with a sign.
"""


def test_a_line_for_each_key_and_below_it_what_it_means() -> None:
    assert key_table(TABLE) == (
        ConfigKey(
            name="a.number",
            kind=ConfigKind.LONG,
            default=5_000,
            doc="What it means in two lines.",
            minimum=-1,
            maximum=10_000,
            synonym="log.a.number",
            dynamic=True,
        ),
        ConfigKey(
            name="a.share", kind=ConfigKind.DOUBLE, default=None, doc="No default.", minimum=0.1, maximum=1
        ),
        ConfigKey(
            name="a.list", kind=ConfigKind.LIST, default=(), doc="An empty default.", choices=("x", "y")
        ),
        ConfigKey(
            name="a.text",
            kind=ConfigKind.STRING,
            default="one = two",
            doc="A default with a sign.",
            sensitive=True,
        ),
    )


def test_choices_and_checks_are_by_name() -> None:
    def check(value: ConfigValue) -> str | None:
        return None if value else "is empty"

    [key] = key_table("k: string\n    A key.", choices={"k": ("", "b")}, checks={"k": check})
    assert (key.choices, key.validate) == (("", "b"), check)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("k: int dynamik = 1", "dynamik says nothing of a key"),
        ("k: int = one", "must be a number"),
        ("k: int = 1", "the table has no other"),
    ],
)
def test_what_is_not_understood_is_an_error(table: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        key_table(table, checks={"other": lambda _: None} if "other" in message else {})

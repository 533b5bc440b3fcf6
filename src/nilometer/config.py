"""Typed configuration with Kafka's own keys: their definitions, also as tables; the text of values, durations
and properties files; errors that name the key.
"""

from __future__ import annotations

import contextlib
import enum
import math
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

# The definition of configuration keys, and the parsing and checking of their values.
#
# A :class:`ConfigKey` is one setting, with Kafka's name; a :class:`ConfigDefinition` is the set of all keys
# of one type of resource (broker, topic). Unknown keys and invalid values raise :class:`ConfigError`, which
# names the key, the value and the allowed values.

ConfigValue = bool | int | float | str | tuple[str, ...]


class ConfigKind(enum.Enum):
    """The types of values, with their numbers in DescribeConfigs (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


_WHOLE_NUMBER_BITS = {ConfigKind.SHORT: 16, ConfigKind.INT: 32, ConfigKind.LONG: 64}


SHOWN_TEXT_MAX = 200
"""How many characters of an invalid text an error shows: the text may be as long as a request."""


class ConfigError(ValueError):
    """A key is unknown or a value is invalid. ``key`` is the wrong key, or the key of the wrong value."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


class ConfigKey(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: ConfigKind
    default: ConfigValue | None
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    validate: Callable[[ConfigValue], str | None] | None = None
    """Checks a value that has the right type and range: returns what is wrong with it, or None."""
    synonym: str | None = None
    """For a topic key: the broker key that sets its default."""
    dynamic: bool = False
    """Whether a running broker applies a new value."""
    sensitive: bool = False

    def parse(self, text: str) -> ConfigValue:
        """Parse and check a value. Raises ConfigError."""
        value = self._parse_kind(text.strip())
        if isinstance(value, int | float) and not isinstance(value, bool):
            if self.minimum is not None and value < self.minimum:
                raise self._refuse(text, f"must be at least {self.minimum}")
            if self.maximum is not None and value > self.maximum:
                raise self._refuse(text, f"must be at most {self.maximum}")
        if self.choices:
            for item in value if isinstance(value, tuple) else (value,):
                if item not in self.choices:
                    raise self._refuse(text, f"must be one of {', '.join(self.choices)}")
        if self.validate is not None and (error := self.validate(value)) is not None:
            raise self._refuse(text, error)
        return value

    def format(self, value: ConfigValue) -> str:
        """Return a value's text form, as Kafka's tools show it."""
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, tuple):
            return ",".join(value)
        return str(value)

    def _parse_kind(self, text: str) -> ConfigValue:
        if self.kind is ConfigKind.STRING:
            return text
        if self.kind is ConfigKind.LIST:
            return tuple(part for item in text.split(",") if (part := item.strip()))
        if self.kind is ConfigKind.BOOLEAN:
            if text.lower() not in ("true", "false"):
                raise self._refuse(text, "must be true or false")
            return text.lower() == "true"
        try:
            if not text.isascii() or "_" in text:  # Python accepts these in numbers, Kafka does not
                raise ValueError
            if self.kind is ConfigKind.DOUBLE:
                return self._finite(float(text))
            number = int(text)
        except ValueError:
            raise self._refuse(text, "must be a number") from None
        bits = _WHOLE_NUMBER_BITS[self.kind]
        if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            raise self._refuse(text, f"does not fit into {bits} bits")
        return number

    @staticmethod
    def _finite(number: float) -> float:
        if not math.isfinite(number):
            raise ValueError
        return number

    def _refuse(self, text: str, reason: str) -> ConfigError:
        return ConfigError(self.name, f"Invalid value {_short(text)} for configuration {self.name}: {reason}")


ConfigValues = Mapping[str, ConfigValue | None]
"""A value for each key of a definition; None if it has no value."""


class ConfigRule(msgspec.Struct, frozen=True):
    """A condition on the values of several keys. The defaults must fulfil it."""

    keys: tuple[str, ...]
    why_broken: Callable[[ConfigValues], str | None]
    """Returns why the effective values break the rule, or None if they do not."""
    is_applied: bool = False
    """Whether values that break it are applied all the same, where they came to be: it only tells what may be
    set."""


ChangeRule = Callable[[ConfigValues, ConfigValues], str | None]
"""Returns why one's own settings may not change from the former to the latter values, or None if they may."""


class ResolvedValues(msgspec.Struct, frozen=True):
    """The effective values if some of the set values cannot be applied."""

    values: dict[str, ConfigValue | None]
    errors: tuple[ConfigError, ...]
    """The reasons why some set values are not applied."""


class ConfigDefinition(msgspec.Struct, frozen=True):
    """All keys of one type of resource. ``subject`` ("broker", "topic") is its name in error messages.

    :meth:`judge` validates a whole set of settings, and raises ConfigError if one is invalid;
    :meth:`resolve` returns the effective values of any settings, valid or not. For valid settings both return
    the same values.
    """

    subject: str
    keys: Mapping[str, ConfigKey] = msgspec.field(default_factory=dict[str, ConfigKey])
    rules: tuple[ConfigRule, ...] = ()
    change_rules: tuple[ChangeRule, ...] = ()
    missing: Mapping[str, str] = msgspec.field(default_factory=dict[str, str])
    """Names of Kafka's keys that are no keys here, each with what an error says of it."""

    @classmethod
    def of(
        cls,
        subject: str,
        keys: Iterable[ConfigKey],
        rules: Iterable[ConfigRule] = (),
        missing: Mapping[str, str] | None = None,
        change_rules: Iterable[ChangeRule] = (),
    ) -> ConfigDefinition:
        by_name = {key.name: key for key in keys}
        return cls(subject, by_name, tuple(rules), tuple(change_rules), missing or {})

    def key(self, name: str) -> ConfigKey:
        """Return the key with this name. Raises ConfigError, with a similar name if there is one."""
        try:
            return self.keys[name]
        except KeyError:
            if name in self.missing:
                raise ConfigError(name, f"The {self.subject} config {name} {self.missing[name]}") from None
            raise ConfigError(
                name, f"Unknown {self.subject} config name: {_short(name)}{self._near(name)}"
            ) from None

    def parse(self, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Parse the values of the given keys only. Raises ConfigError for the first invalid one."""
        return {name: self.key(name).parse(text) for name, text in texts.items()}

    def judge(
        self, texts: Mapping[str, str], inherited: Mapping[str, ConfigValue] | None = None
    ) -> dict[str, ConfigValue | None]:
        """Validate settings; return the effective values: for each key the value in ``texts``, else the one
        in ``inherited``, else the default.

        Raises ConfigError if a text is invalid, or if values contradict each other.
        """
        parsed = self.parse(texts)
        for error in self.contradictions(texts, inherited):
            raise error
        return {**self._defaults(), **(inherited or {}), **parsed}

    def contradictions(
        self, texts: Mapping[str, str], inherited: Mapping[str, ConfigValue] | None = None
    ) -> list[ConfigError]:
        """Return an error for each rule that the effective values break. Invalid texts are ignored."""
        values = {**self._defaults(), **(inherited or {}), **self.readable(texts)}
        return [
            ConfigError(rule.keys[0], why)
            for rule in self.rules
            if (why := rule.why_broken(values)) is not None
        ]

    def why_not_changed(self, before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
        """Return why the settings may not change so, whatever is inherited; None if they may."""
        former = {**self._defaults(), **self.readable(before)}
        latter = {**self._defaults(), **self.readable(after)}
        return next((why for rule in self.change_rules if (why := rule(former, latter)) is not None), None)

    def readable(self, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Return the parsed values, without those of unknown keys and invalid texts."""
        values: dict[str, ConfigValue] = {}
        for name, text in texts.items():
            with contextlib.suppress(ConfigError):
                values[name] = self.key(name).parse(text)
        return values

    def resolve(
        self,
        texts: Mapping[str, str],
        inherited: Mapping[str, ConfigValue] | None = None,
        last_good: ConfigValues | None = None,
    ) -> ResolvedValues:
        """Return the effective values for any ``texts``, with errors for the invalid ones; never raises.

        A key with an invalid text, or with a value that contradicts another setting, gets its value in
        ``last_good`` (an earlier result), else the inherited one; if inherited values contradict each other,
        the default.
        """
        base = self._defaults()
        errors = self._put(base, dict(inherited or {}), self._defaults())
        readable: dict[str, ConfigValue] = {}
        fallback = {**base, **(last_good or {})}
        values = dict(base)
        for name, text in texts.items():
            try:
                readable[name] = self.key(name).parse(text)
            except ConfigError as error:
                errors.append(error)
                if name in fallback:
                    values[name] = fallback[name]
        errors += self._put(values, readable, fallback)
        return ResolvedValues(values, tuple(errors))

    def _put(
        self, values: dict[str, ConfigValue | None], given: Mapping[str, ConfigValue], fallback: ConfigValues
    ) -> list[ConfigError]:
        """Update ``values`` by ``given``; the keys of a rule that is then broken get their ``fallback``.

        Returns an error for each broken rule.
        """
        values.update(given)
        errors: list[ConfigError] = []
        for rule in self.rules:
            if not rule.is_applied and (why := rule.why_broken(values)) is not None:
                errors.append(ConfigError(rule.keys[0], why))
                values.update({name: fallback[name] for name in rule.keys})
        return errors

    def _defaults(self) -> dict[str, ConfigValue | None]:
        return {name: key.default for name, key in self.keys.items()}

    def _near(self, name: str) -> str:
        import difflib  # only imported for an error

        if len(name) > SHOWN_TEXT_MAX:
            return ""

        close = difflib.get_close_matches(name, self.keys, n=1, cutoff=0.7)
        return f" (did you mean {close[0]}?)" if close else ""


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_TEXT_MAX else f"{text[:SHOWN_TEXT_MAX]}… ({len(text)} characters)"


# Settings: the given values of a definition's keys, or their defaults, with typed access.


class Settings:
    def __init__(self, definition: ConfigDefinition, texts: Mapping[str, str]) -> None:
        """Parse ``texts``. Raises ConfigError, which names the key."""
        self._definition = definition
        self._given = definition.parse(texts)

    def fields_of(self, record: type[Any]) -> dict[str, Any]:
        """Return the values for those fields of ``record`` that are named as keys, with underscores for
        dots."""
        names = {name: name.replace("_", ".") for name in record.__annotations__}
        return {name: self.value(key) for name, key in names.items() if key in self._definition.keys}

    def is_given(self, name: str) -> bool:
        return name in self._given

    def value(self, name: str) -> ConfigValue | None:
        """Return the given value of a known key, or its default."""
        given = self._given.get(name)
        return given if given is not None else self._definition.key(name).default

    def integer(self, name: str) -> int:
        value = self.value(name)
        assert isinstance(value, int), name
        return value

    def real(self, name: str) -> float:
        value = self.value(name)
        assert isinstance(value, float | int), name
        return float(value)

    def string(self, name: str) -> str:
        value = self.value(name)
        assert isinstance(value, str), name
        return value

    def optional_string(self, name: str) -> str | None:
        value = self.value(name)
        assert value is None or isinstance(value, str), name
        return value

    def strings(self, name: str) -> tuple[str, ...]:
        value = self.value(name)
        assert isinstance(value, tuple), name
        return value

    def boolean(self, name: str) -> bool:
        value = self.value(name)
        assert isinstance(value, bool), name
        return value


# Configuration keys as a table: a line for each key, and below it what it means.
#
#     retention.ms: long -1.. dynamic by:log.retention.ms = 604_800_000
#         Age of a segment's newest record above which the segment is deleted; -1: no limit.
#
# After the name stand the kind, the lowest and the highest value (``1..9``, ``0..``), the possible values
# (``(gzip|none)``), ``dynamic``, ``secret``, and the broker's key that sets the default of a topic's key. A
# key without ``=`` has no default; the default of a list or a text after ``=`` may be empty.

Check = Callable[[ConfigValue], str | None]
MEANING = "    "


def key_table(
    text: str,
    *,
    choices: Mapping[str, tuple[str, ...]] | None = None,
    checks: Mapping[str, Check] | None = None,
) -> tuple[ConfigKey, ...]:
    """Return the keys of a table. ``choices`` and ``checks``: by name, what cannot be written in it.

    Raises ValueError if the table is not of its form.
    """
    entries: list[tuple[str, list[str]]] = []
    for line in text.strip("\n").splitlines():
        if line.startswith(MEANING):
            entries[-1][1].append(line.strip())
        else:
            entries.append((line, []))
    keys = tuple(_key(line, " ".join(meaning), choices or {}, checks or {}) for line, meaning in entries)
    if unknown := {*(choices or ()), *(checks or ())} - {key.name for key in keys}:
        raise ValueError(f"the table has no {', '.join(sorted(unknown))}")
    return keys


def _key(
    line: str, doc: str, choices: Mapping[str, tuple[str, ...]], checks: Mapping[str, Check]
) -> ConfigKey:
    declared, has_default, default = line.partition(" =")
    name, _, rest = declared.partition(": ")
    kind, *words = rest.split()
    key = ConfigKey(name=name, kind=ConfigKind[kind.upper()], default=None, doc=doc)
    limits: tuple[float | None, float | None] = (None, None)
    listed, flags, synonym = choices.get(name, ()), set[str](), None
    for word in words:
        low, is_range, high = word.partition("..")
        if is_range:
            limits = _number(low), _number(high)
        elif word.startswith("("):
            listed = tuple(word[1:-1].split("|"))
        elif word.startswith("by:"):
            synonym = word.removeprefix("by:")
        elif word in ("dynamic", "secret"):
            flags.add(word)
        else:
            raise ValueError(f"{line}: {word} says nothing of a key")
    is_text = key.kind in (ConfigKind.STRING, ConfigKind.LIST)
    return ConfigKey(
        name=name,
        kind=key.kind,
        default=key.parse(default if is_text else default.replace("_", "")) if has_default else None,
        doc=doc,
        minimum=limits[0],
        maximum=limits[1],
        choices=listed,
        validate=checks.get(name),
        synonym=synonym,
        dynamic="dynamic" in flags,
        sensitive="secret" in flags,
    )


def _number(text: str) -> float | None:
    if not text:
        return None
    return float(text) if "." in text else int(text)


# Properties files, as Kafka's.


def parse_properties(text: str, origin: str) -> dict[str, str]:
    """Return the ``key=value`` lines of a properties file. Raises ConfigError, naming file and line."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        line = line.strip()
        if not line or line[0] in "#!":
            continue
        key, separator, value = line.partition("=")
        if not separator or not key.strip():
            # Without the line itself: it may be a part of a private key or of a password.
            raise ConfigError(f"line {number}", f"{origin}, line {number}: not of the form key=value")
        values[key.strip()] = value.strip()
    return values


# Durations in ISO 8601, as Kafka's settings and tools take them: ``P1DT2H30M``.

_UNITS = (("days", 86_400_000), ("hours", 3_600_000), ("minutes", 60_000), ("seconds", 1_000))
_FORM = re.compile(
    r"P(?:(?P<days>\d+)D)?"
    r"(?:T(?=\d)(?:(?P<hours>\d+)H)?(?:(?P<minutes>\d+)M)?(?:(?P<seconds>\d+(?:\.\d{1,9})?)S)?)?",
    re.ASCII | re.IGNORECASE,
)


DURATION_MAX_MS = 999_999_999 * 86_400_000
"""The longest duration that a request can have: 999,999,999 days."""


def parse_duration_ms(text: str) -> int:
    """Return a duration ``PnDTnHnMn.nS`` in milliseconds, at most ``DURATION_MAX_MS``; a day is 24 hours.

    Raises ValueError.
    """
    found = _FORM.fullmatch(text)
    if found is None or not any(found.groups()):
        raise ValueError(f"{text!r} is not a duration such as PT12H or P1DT2H30M (ISO 8601)")
    parts = [float(found[unit] or 0) * factor for unit, factor in _UNITS]
    if sum(parts) > DURATION_MAX_MS:
        raise ValueError(f"{text!r} is longer than P999999999D")
    return sum(map(round, parts))

"""What a configuration key is, and how its text becomes a value.

A :class:`ConfigKey` names one setting as Kafka does; a :class:`ConfigDefinition` is the closed set of
keys that one kind of resource (broker, topic) knows. Unknown keys and bad values raise
:class:`ConfigError`, which names the key, the value and what would be allowed.
"""

from __future__ import annotations

import contextlib
import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

ConfigValue = bool | int | float | str | tuple[str, ...]


class ConfigKind(enum.Enum):
    """Value types, with the numbers DescribeConfigs gives them (KIP-569)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    SHORT = 4
    LONG = 5
    DOUBLE = 6
    LIST = 7


_WHOLE_NUMBER_BITS = {ConfigKind.SHORT: 16, ConfigKind.INT: 32, ConfigKind.LONG: 64}


SHOWN_TEXT_MAX = 200
"""How many characters of a refused text an error repeats: the text may be as long as a request."""


class ConfigError(ValueError):
    """A key or value that cannot be accepted. ``key`` is the one that is wrong."""

    def __init__(self, key: str, message: str) -> None:
        super().__init__(message)
        self.key = key


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigKey:
    name: str
    kind: ConfigKind
    default: ConfigValue | None
    doc: str
    minimum: float | None = None
    maximum: float | None = None
    choices: tuple[str, ...] = ()
    validate: Callable[[ConfigValue], str | None] | None = None
    """Returns what is wrong with a value that has the right type and range, or None."""
    synonym: str | None = None
    """For a topic key: the broker key that gives its default."""
    dynamic: bool = False
    """Whether a running broker takes a new value."""
    sensitive: bool = False

    def parse(self, text: str) -> ConfigValue:
        """The value that ``text`` stands for. Raises ConfigError."""
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
        """The text form that Kafka's tools show."""
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
            if not text.isascii() or "_" in text:  # Python would read those as numbers, Kafka does not
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
"""A value for each key of a definition; None where it has none."""


@dataclass(frozen=True, slots=True)
class ConfigRule:
    """What must hold between the values of several keys. The defaults must keep it."""

    keys: tuple[str, ...]
    why_broken: Callable[[ConfigValues], str | None]
    """What is wrong with the effective values, or None."""


@dataclass(frozen=True, slots=True)
class ResolvedValues:
    """The effective values where not every value that was set can be applied."""

    values: dict[str, ConfigValue | None]
    errors: tuple[ConfigError, ...]
    """Why some of the values are not those that were set."""


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """A closed set of keys. ``subject`` ("broker", "topic") appears in refusals.

    :meth:`judge` decides whether a whole set of settings is accepted; :meth:`resolve` gives the values in
    force for any set of texts, accepted or not. Where ``judge`` accepts, both give the same values.
    """

    subject: str
    keys: Mapping[str, ConfigKey] = field(default_factory=dict[str, ConfigKey])
    rules: tuple[ConfigRule, ...] = ()

    @classmethod
    def of(
        cls, subject: str, keys: Iterable[ConfigKey], rules: Iterable[ConfigRule] = ()
    ) -> ConfigDefinition:
        return cls(subject, {key.name: key for key in keys}, tuple(rules))

    def key(self, name: str) -> ConfigKey:
        """Raises ConfigError for a name that is not known, with near misses."""
        try:
            return self.keys[name]
        except KeyError:
            raise ConfigError(
                name, f"Unknown {self.subject} config name: {_short(name)}{self._near(name)}"
            ) from None

    def parse(self, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Parse what was given; keys not given are absent. Raises ConfigError at the first bad one."""
        return {name: self.key(name).parse(text) for name, text in texts.items()}

    def judge(
        self, texts: Mapping[str, str], inherited: Mapping[str, ConfigValue] | None = None
    ) -> dict[str, ConfigValue | None]:
        """The values in force for ``texts`` over what is ``inherited`` over the defaults.

        Raises ConfigError: a text that is no value of its key, or values that contradict each other.
        """
        parsed = self.parse(texts)
        for error in self.contradictions(texts, inherited):
            raise error
        return {**self._defaults(), **(inherited or {}), **parsed}

    def contradictions(
        self, texts: Mapping[str, str], inherited: Mapping[str, ConfigValue] | None = None
    ) -> list[ConfigError]:
        """Which settings cannot be in force together. Texts that cannot be read are left out."""
        values = {**self._defaults(), **(inherited or {}), **self.readable(texts)}
        return [
            ConfigError(rule.keys[0], why)
            for rule in self.rules
            if (why := rule.why_broken(values)) is not None
        ]

    def readable(self, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
        """The values of those texts that are values of a known key."""
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
        """The values in force for any ``texts``; never raises.

        What cannot be read, or contradicts another setting, keeps its value of ``last_good`` (an earlier
        result); without one, what is inherited; where that is contradictory itself, the default.
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
        """Puts ``given`` over ``values``; the keys of a rule that it breaks get their ``fallback``."""
        values.update(given)
        errors: list[ConfigError] = []
        for rule in self.rules:
            if (why := rule.why_broken(values)) is not None:
                errors.append(ConfigError(rule.keys[0], why))
                values.update({name: fallback[name] for name in rule.keys})
        return errors

    def _defaults(self) -> dict[str, ConfigValue | None]:
        return {name: key.default for name, key in self.keys.items()}

    def _near(self, name: str) -> str:
        import difflib  # only on the way to an error

        if len(name) > SHOWN_TEXT_MAX:
            return ""

        close = difflib.get_close_matches(name, self.keys, n=1, cutoff=0.7)
        return f" (did you mean {close[0]}?)" if close else ""


def _short(text: str) -> str:
    return text if len(text) <= SHOWN_TEXT_MAX else f"{text[:SHOWN_TEXT_MAX]}… ({len(text)} characters)"

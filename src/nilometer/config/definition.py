"""What a configuration key is, and how its text becomes a value.

A :class:`ConfigKey` names one setting as Kafka does; a :class:`ConfigDefinition` is the closed set of
keys that one kind of resource (broker, topic) knows. Unknown keys and bad values raise
:class:`ConfigProblem`, which names the key, the value and what would be allowed.
"""

from __future__ import annotations

import enum
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


class ConfigProblem(ValueError):
    """A key or value that cannot be accepted. ``key`` names the culprit."""

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
        """The value that ``text`` stands for. Raises ConfigProblem."""
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
        if self.validate is not None and (problem := self.validate(value)) is not None:
            raise self._refuse(text, problem)
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
            if self.kind is ConfigKind.DOUBLE:
                return float(text)
            number = int(text)
        except ValueError:
            raise self._refuse(text, "must be a number") from None
        bits = _WHOLE_NUMBER_BITS[self.kind]
        if not -(1 << (bits - 1)) <= number < 1 << (bits - 1):
            raise self._refuse(text, f"does not fit into {bits} bits")
        return number

    def _refuse(self, text: str, reason: str) -> ConfigProblem:
        return ConfigProblem(self.name, f"Invalid value {text} for configuration {self.name}: {reason}")


@dataclass(frozen=True, slots=True)
class ConfigDefinition:
    """A closed set of keys. ``subject`` ("broker", "topic") appears in refusals."""

    subject: str
    keys: Mapping[str, ConfigKey] = field(default_factory=dict[str, ConfigKey])

    @classmethod
    def of(cls, subject: str, keys: Iterable[ConfigKey]) -> ConfigDefinition:
        return cls(subject, {key.name: key for key in keys})

    def key(self, name: str) -> ConfigKey:
        """Raises ConfigProblem for a name that is not known, with near misses."""
        try:
            return self.keys[name]
        except KeyError:
            raise ConfigProblem(
                name, f"Unknown {self.subject} config name: {name}{self._near(name)}"
            ) from None

    def parse(self, texts: Mapping[str, str]) -> dict[str, ConfigValue]:
        """Parse what was given; keys not given are absent. Raises ConfigProblem at the first bad one."""
        return {name: self.key(name).parse(text) for name, text in texts.items()}

    def _near(self, name: str) -> str:
        import difflib  # only on the way to an error

        close = difflib.get_close_matches(name, self.keys, n=1, cutoff=0.7)
        return f" (did you mean {close[0]}?)" if close else ""

"""Configuration keys as a table: a line for each key, and below it what it means.

    retention.ms: long -1.. dynamic by:log.retention.ms = 604_800_000
        Age of a segment's newest record above which the segment is deleted; -1: no limit.

After the name stand the kind, the lowest and the highest value (``1..9``, ``0..``), the possible values
(``(gzip|none)``), ``dynamic``, ``secret``, and the broker's key that sets the default of a topic's key. A key
without ``=`` has no default; the default of a list or a text after ``=`` may be empty.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from nilometer.config.definition import ConfigKey, ConfigKind, ConfigValue

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

"""Proposes definitions for lines that no format takes. Pure.

Lines are grouped: JSON objects, separated values under a header, lines with the same head, lines with the
same words. Each group gives a definition in TOML, which is compiled and applied to all the lines before it is
proposed, so that the number of lines it takes is counted and not guessed.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from nilometer.pipeline.formats.definition import FormatError, parse_formats
from nilometer.pipeline.formats.line_shapes import Shape, head_of, template_of, template_shape
from nilometer.pipeline.formats.matcher import Matcher
from nilometer.pipeline.formats.table_shapes import json_definition, separated_definition
from nilometer.pipeline.formats.tally import shortened

LINES_MAX: Final = 5_000
"""Only so many lines are looked at."""
PROPOSALS_MAX: Final = 5
SAMPLES_MAX: Final = 3
CANDIDATES_MAX: Final = 12
TEMPLATE_LINES_MIN: Final = 2
"""A single line with its own words is no format."""


class Proposal(NamedTuple):
    """A definition for lines that no format takes."""

    name: str
    toml: str
    lines: int
    """How many of the lines it takes."""
    samples: list[str]


def propose(lines: Sequence[str], taken: Sequence[str] = ()) -> list[Proposal]:
    """Return definitions for ``lines``, the one that takes most first; ``taken`` are names already in use."""
    left: list[str] = [line for line in lines[:LINES_MAX] if line.strip()]
    proposals: list[Proposal] = []
    while left and len(proposals) < PROPOSALS_MAX:
        name = _free_name([*taken, *(one.name for one in proposals)])
        best = max((one for one in _candidates(left, name)), key=lambda one: len(one[1]), default=None)
        if best is None or not best[1]:
            break
        toml, matched = best
        samples = [shortened(left[number]) for number in matched[:SAMPLES_MAX]]
        proposals.append(Proposal(name, toml, len(matched), samples))
        gone = set(matched)
        left = [line for number, line in enumerate(left) if number not in gone]
    return proposals


def clusters(lines: Sequence[str], most: int = 10) -> list[tuple[int, str]]:
    """Return the most frequent templates of words of ``lines``: how many lines, and one of them."""
    first: dict[tuple[str, ...], str] = {}
    counts: Counter[tuple[str, ...]] = Counter()
    for line in lines[:LINES_MAX]:
        template = template_of(line)
        first.setdefault(template, line)
        counts[template] += 1
    return [(count, shortened(first[template])) for template, count in counts.most_common(most)]


def _candidates(lines: Sequence[str], name: str) -> Iterator[tuple[str, list[int]]]:
    """Yield definitions in TOML, each with the numbers of the lines that it takes."""
    for toml in _definitions(lines, name):
        try:
            matcher = Matcher(parse_formats(toml, "the proposal"))
        except FormatError:
            continue  # such as a pattern that is larger than RE2 allows
        yield toml, [number for number, line in enumerate(lines) if _takes(matcher, line)]


def _takes(matcher: Matcher, line: str) -> bool:
    return matcher.match_text(line).format not in ("blank", "unparsed")


def _definitions(lines: Sequence[str], name: str) -> Iterator[str]:
    for toml in (json_definition(lines, name), separated_definition(lines, name)):
        if toml is not None:
            yield toml
    heads = Counter(shape for shape in map(head_of, lines) if shape is not None)
    if heads:
        yield from (pattern_definition(shape, name) for shape, _ in heads.most_common(CANDIDATES_MAX))
        return
    templates = Counter(map(template_of, lines))
    for template, count in templates.most_common(CANDIDATES_MAX):
        if count >= TEMPLATE_LINES_MIN and any(word != "*" for word in template):
            yield pattern_definition(template_shape(template), name)


def pattern_definition(shape: Shape, name: str) -> str:
    rows = ["[[format]]", f"name = {json.dumps(name)}", f"pattern = {_literal(shape.pattern)}"]
    if shape.time_format is not None:
        rows += ['time = "time"', f"time_format = {json.dumps(shape.time_format)}"]
    if shape.has_level:
        rows.append('level = "level"')
    if shape.has_name:
        rows.append('key = "logger"')
    return "\n".join(rows) + "\n"


def _literal(text: str) -> str:
    """Return a TOML string; one in single quotes needs no escapes."""
    if "'" not in text and text.isprintable():
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _free_name(taken: Sequence[str]) -> str:
    number = 1
    while f"mine-{number}" in taken:
        number += 1
    return f"mine-{number}"

"""Counts lines by file and format, and keeps samples of those of no format. Pure.

Invariant: the memory is bounded, however many files and lines there are.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

SAMPLES_MAX: Final = 5
"""Samples per file."""
SAMPLE_CHARS_MAX: Final = 200
FILES_MAX: Final = 500
OTHER_FILES: Final = "(other files)"


class Tally:
    """Lines read, recognised and skipped, by file and by format."""

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {}
        self._samples: dict[str, list[str]] = {}

    def add(self, source: str, form: str, lines: int = 1) -> None:
        """Count lines of a format; ``blank`` and ``unparsed`` are those of none."""
        self._of(self._counts, source, Counter[str])[form] += lines

    def add_sample(self, source: str, line: str) -> None:
        """Keep a line of no format as a sample, unless there are enough or the same one is kept."""
        kept: list[str] = self._of(self._samples, source, list[str])
        shown = shortened(line)
        if len(kept) < SAMPLES_MAX and shown not in kept:
            kept.append(shown)

    def _of(self, table: dict[str, Any], source: str, new: Any) -> Any:
        if source not in table and len(table) >= FILES_MAX:
            source = OTHER_FILES
        return table.setdefault(source, new())

    def merge(self, listing: Mapping[str, Any]) -> None:
        """Add the counts of another tally: ``listing`` is the result of its ``to_json``."""
        for file in listing["files"]:
            for form, lines in file["by_format"].items():
                self.add(file["path"], form, lines)
            for kind, key in (("blank", "blank"), ("unparsed", "unrecognised")):
                if file[key]:
                    self.add(file["path"], kind, file[key])
            for line in file["samples"]:
                self.add_sample(file["path"], line)

    @property
    def by_format(self) -> dict[str, int]:
        """Lines of each format, the most frequent first; without blank and unrecognised ones."""
        return _formats(sum(self._counts.values(), Counter[str]()))

    @property
    def lines(self) -> int:
        return sum(counts.total() for counts in self._counts.values())

    @property
    def blank(self) -> int:
        return sum(counts["blank"] for counts in self._counts.values())

    @property
    def unrecognised(self) -> int:
        return sum(counts["unparsed"] for counts in self._counts.values())

    @property
    def recognised(self) -> int:
        return self.lines - self.blank - self.unrecognised

    @property
    def unrecognised_share(self) -> float:
        """The share of the lines that are not blank; 0 if there are none."""
        return share(self.unrecognised, self.lines - self.blank)

    def samples(self, most: int = SAMPLES_MAX) -> list[str]:
        """Return samples of all files, of the files with the most unrecognised lines first."""
        sources = sorted(self._samples, key=lambda one: (-self._counts.get(one, Counter())["unparsed"], one))
        rows = [self._samples[source] for source in sources]
        # One of each file, then the second of each, so that no file hides the others.
        mixed = [row[number] for number in range(SAMPLES_MAX) for row in rows if number < len(row)]
        return list(dict.fromkeys(mixed))[:most]

    def files(self) -> list[dict[str, Any]]:
        """Return the counts by file, the one with the most unrecognised lines first."""
        found = [
            {
                "path": source,
                "lines": counts.total(),
                "recognised": counts.total() - counts["blank"] - counts["unparsed"],
                "blank": counts["blank"],
                "unrecognised": counts["unparsed"],
                "by_format": _formats(counts),
                "samples": self._samples.get(source, []),
            }
            for source, counts in self._counts.items()
        ]
        return sorted(found, key=lambda one: (-int(one["unrecognised"]), str(one["path"])))

    def to_json(self) -> dict[str, Any]:
        return {
            "lines": self.lines,
            "recognised": self.recognised,
            "blank": self.blank,
            "unrecognised": self.unrecognised,
            "unrecognised_share": round(self.unrecognised_share, 6),
            "by_format": self.by_format,
            "samples": self.samples(),
            "files": self.files(),
        }


def share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def shortened(line: str) -> str:
    return line if len(line) <= SAMPLE_CHARS_MAX else line[: SAMPLE_CHARS_MAX - 1] + "…"


def _formats(counts: Mapping[str, int]) -> dict[str, int]:
    of_formats = [(form, lines) for form, lines in counts.items() if form not in ("blank", "unparsed")]
    return dict(sorted(of_formats, key=lambda one: (-one[1], one[0])))


def tallied(listings: Sequence[Mapping[str, Any]]) -> Tally:
    """Return the sum of some tallies in JSON."""
    whole = Tally()
    for listing in listings:
        whole.merge(listing)
    return whole

"""The errors of pipelines, with messages for the person who runs them.

Spark passes an exception from a Python worker to the driver as text. ``readable`` finds the message in that
text by the exception's class name before it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Generator, Mapping
from typing import Any

_SECRET = re.compile(r"jaas|passw|secret|token|\.key$", re.IGNORECASE)
"""The options whose values are in no message."""


class PipelineError(Exception):
    """An error that the user can correct: the message says what is wrong, where, and what to do."""


class OptionError(PipelineError):
    """An option of the source or the sink is unknown or has an invalid value."""

    def __init__(self, option: str, value: str | None, reason: str) -> None:
        given = "" if value is None else f" = {'(hidden)' if _SECRET.search(option) else repr(value)}"
        super().__init__(f"option {option}{given}: {reason}")
        self.option = option


class SourceError(PipelineError):
    """The cluster or the folders cannot provide the requested records."""


class SinkError(PipelineError):
    """Writing records to the cluster failed."""


class DataLoss(SourceError):
    """Records of the requested range are not in the log any more."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. With failOnDataLoss=false the job continues without them")


class RejectedValue(Exception):
    """A record is none of what is read; the message is reason and detail, for the dead letter."""

    def __init__(self, reason: str, detail: str = "") -> None:
        """``reason`` is one of not many, by which such values are counted."""
        super().__init__(f"{reason}: {detail}" if detail else reason)
        self.reason = reason
        self.detail = detail


_IN_TRACEBACK = re.compile(r"^(?:nilometer\.pipeline\.[\w.]+\.)?(\w+): (.+)$", re.MULTILINE)


def _names(kind: type[PipelineError] = PipelineError) -> set[str]:
    """Return the names of all classes of errors with messages for people."""
    return {kind.__name__}.union(*map(_names, kind.__subclasses__()))


@contextlib.contextmanager
def in_record(record: Mapping[str, Any]) -> Generator[None]:
    """Name the record in an error that is none of the value's: a mistake in this program."""
    try:
        yield
    except (PipelineError, RejectedValue, MemoryError):
        raise
    except Exception as error:
        place = f"{record['topic']}-{record['partition']} at offset {record['offset']}"
        said = f"{type(error).__name__}: {error}".replace("\n", " ")
        raise PipelineError(f"the record in {place} cannot be processed: {said}") from error


def readable(error: BaseException) -> str | None:
    """Return the message of a PipelineError, also if Spark has wrapped it; None for any other error."""
    if isinstance(error, PipelineError):
        return str(error)
    names = _names()
    found = [said for name, said in _IN_TRACEBACK.findall(str(error)) if name in names]
    return found[-1].strip() if found else None

"""What can go wrong in a pipeline, in words for the person who runs it.

Spark carries an exception from a Python worker to the driver as text. ``readable`` finds the words again
in that text: everything raised here starts with its class's name, which stands nowhere else.
"""

from __future__ import annotations

import re


class PipelineError(Exception):
    """Something the user can act on: what is wrong, where, and what to do."""


class OptionError(PipelineError):
    """An option of the source or the sink that is not known or not possible."""

    def __init__(self, option: str, value: str | None, reason: str) -> None:
        given = "" if value is None else f" = {value!r}"
        super().__init__(f"option {option}{given}: {reason}")
        self.option = option


class SourceError(PipelineError):
    """The cluster cannot give what was asked for."""


class SinkError(PipelineError):
    """The cluster cannot take what was to be written."""


class DataLoss(SourceError):
    """Records that were to be read are not in the log any more."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. With failOnDataLoss=false the job goes on without them")


_NAMES = "|".join(one.__name__ for one in (PipelineError, OptionError, SourceError, SinkError, DataLoss))
_IN_TRACEBACK = re.compile(rf"^(?:nilometer\.pipeline\.errors\.)?(?:{_NAMES}): (.+)$", re.MULTILINE)


def readable(error: BaseException) -> str | None:
    """The words of one of these problems, however deep Spark has wrapped it; None if it is another's."""
    if isinstance(error, PipelineError):
        return str(error)
    found = _IN_TRACEBACK.findall(str(error))
    return found[-1].strip() if found else None

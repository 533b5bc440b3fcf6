"""What can go wrong in a pipeline, in words for the person who runs it.

Spark carries an exception from a Python worker to the driver as text. ``readable`` finds the words again
in that text: everything raised here starts with its class's name, which stands nowhere else.
"""

from __future__ import annotations

import re


class PipelineProblem(Exception):
    """Something the user can act on: what is wrong, where, and what to do."""


class OptionError(PipelineProblem):
    """An option of the source or the sink that is not known or not possible."""

    def __init__(self, option: str, value: str | None, reason: str) -> None:
        given = "" if value is None else f" = {value!r}"
        super().__init__(f"option {option}{given}: {reason}")
        self.option = option


class SourceProblem(PipelineProblem):
    """The cluster cannot give what was asked for."""


class SinkProblem(PipelineProblem):
    """The cluster cannot take what was to be written."""


class DataLoss(SourceProblem):
    """Records that were to be read are not in the log any more."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what}. With failOnDataLoss=false the job goes on without them")


_NAMES = "|".join(
    one.__name__ for one in (PipelineProblem, OptionError, SourceProblem, SinkProblem, DataLoss)
)
_IN_TRACEBACK = re.compile(rf"^(?:nilometer\.pipeline\.errors\.)?(?:{_NAMES}): (.+)$", re.MULTILINE)


def readable(problem: BaseException) -> str | None:
    """The words of one of these problems, however deep Spark has wrapped it; None if it is another's."""
    if isinstance(problem, PipelineProblem):
        return str(problem)
    found = _IN_TRACEBACK.findall(str(problem))
    return found[-1].strip() if found else None

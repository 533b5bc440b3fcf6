"""Performs a complete round of compaction of one log, as a broker does."""

from __future__ import annotations

from collections.abc import Callable

from nilometer.storage.cleaning.cleaning_plan import plan_cleaning
from nilometer.storage.cleaning.cleaning_round import BUFFER_BYTES, LogCleaning, RoundOptions, RoundStatistics
from nilometer.storage.log import Log


def make_durable(log: Log) -> None:
    plan = log.flush_plan()
    plan.run()
    log.mark_flushed(plan, wall_ms=1)


def clean_log(
    log: Log,
    *,
    wall_ms: int,
    high_watermark: int | None = None,
    buffer_bytes: int = BUFFER_BYTES,
    slice_bytes: int = 200,
    meanwhile: Callable[[], object] = lambda: None,
) -> RoundStatistics | None:
    """Clean a log and return the round's statistics; None if nothing may be cleaned.

    Does not check ``min.cleanable.dirty.ratio``. ``meanwhile`` is called between the slices. Replaced files
    are removed.
    """
    bound = log.log_end_offset if high_watermark is None else high_watermark
    view = log.cleanable_view(high_watermark=bound, durable_recovery_point=log.recovery_point)
    plan = plan_cleaning(view, wall_ms)
    if plan is None:
        return None
    options = RoundOptions(wall_ms=wall_ms, buffer_bytes=buffer_bytes, slice_bytes=slice_bytes)
    cleaning = LogCleaning(log, plan, options)
    steps = cleaning.round.steps()
    try:
        for group in steps:
            meanwhile()
            cleaning.check()
            if group is not None:
                for path in cleaning.replace(group, wall_ms=wall_ms):
                    log.files.disk.remove(path)
    finally:
        steps.close()
        cleaning.round.discard()
    cleaning.finish()
    return cleaning.round.statistics

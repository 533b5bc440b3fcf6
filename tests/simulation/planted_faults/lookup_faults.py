"""Faults of look-ups: what an index or a header says is taken for true."""

from __future__ import annotations

from planted_faults.planting import Patch, PlantedFault

from nilometer.simulation.fault_kinds import Kind
from nilometer.storage import reading, time_search
from nilometer.storage.segments import segment
from nilometer.storage.segments.segment import Youngest

MANY_SEGMENTS = {"segment_ms": 2_000}


def believe_time_indexes(patch: Patch) -> None:
    patch.setattr(segment, "find_youngest", lambda files, *_: Youngest(*files.last_time_entry()))


def believe_headers(patch: Patch) -> None:
    patch.setattr(reading, "_check_before", lambda *_: None)
    patch.setattr(reading, "_prove_gap", lambda *_: None)
    patch.setattr(time_search, "_check", lambda *_: None)


FAULTS = (
    PlantedFault(
        name="believe-time-indexes",
        what="a search by time passes over segments by what their time index says alone",
        plant=believe_time_indexes,
        kinds=(Kind.INDEX_DAMAGE, Kind.CRASH),
        seeds=20,
        deletes=MANY_SEGMENTS,
    ),
    PlantedFault(
        name="believe-headers",
        what="look-ups step over batches by what their headers say, unchecked",
        plant=believe_headers,
        kinds=(Kind.DAMAGE,),
        seeds=40,
        minutes=1.0,
        mean_gap_s=0.5,
        deletes=MANY_SEGMENTS,
    ),
)

"""Runs the audit's checks of single replicas in this process, without Spark."""

from __future__ import annotations

from pathlib import Path

from nilometer.pipeline.audit.audit import check_listed, plan_segments
from nilometer.pipeline.audit.segment_check import Finding, SegmentCheck
from nilometer.pipeline.source.log_folders.places import find_replicas


def findings_in(*places: Path) -> list[Finding]:
    found: list[Finding] = []
    for replica in find_replicas([str(place) for place in places]):
        results = []
        for work in plan_segments([replica]):
            check = SegmentCheck(work)
            for _ in check.run():
                pass
            results.append(check.result)
        found += check_listed(replica, results).findings
    return found

"""Made-up remote storage of many segments, and what planning a read of it takes, in a process of its own:

``PYTHONPATH=src:tests python -m support.pipeline.large_tier PARTITIONS SEGMENTS``
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from nilometer.storage.producers import encode_snapshot
from nilometer.tier.format import IndexSections, RemoteSegment, encode_index

from .tiered_folders import FolderTier

SEGMENT_BYTES = 64 << 20
RECORDS = 50_000
"""In each segment."""

_PLAN = """
import json, pickle, sys, time
from pyspark.sql.types import StructType
from nilometer.pipeline.source.log_folders.log_source import LogReader
began = time.monotonic()
slices = LogReader(json.loads(sys.argv[1]), StructType()).partitions()
pickled = sum(len(pickle.dumps(one)) for one in slices)
seconds = time.monotonic() - began
offsets = sum(one.wanted.end - one.wanted.start for one in slices)
[peak] = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")]
print(json.dumps([len(slices), offsets, pickled, int(peak) * 1024, seconds]))
"""


class Planned(NamedTuple):
    slices: int
    offsets: int
    """How many offsets they have."""
    pickled_bytes: int
    peak_bytes: int
    """The most memory that the process that planned had in use."""
    seconds: float


def make_tier(root: Path, partitions: int, segments: int) -> None:
    """Write manifests that name ``segments`` of each partition, and of the last one its indexes: no more."""
    for partition in range(partitions):
        tier = FolderTier(root, partition=partition)
        made = tuple(
            RemoteSegment(
                number * RECORDS, (number + 1) * RECORDS - 1, 1_700_000_000_000 + number, SEGMENT_BYTES,
                100_000, False, f"{partition * segments + number:016x}", ((number // 100, number * RECORDS),),
            )
            for number in range(segments)
        )  # fmt: skip
        tier.write(tier.manifest, segments=made, leader_epoch=segments)
        index = encode_index(IndexSections(b"", b"", b"", encode_snapshot([])))
        (tier.folder / made[-1].index_name).write_bytes(index)


def plan_elsewhere(root: Path, options: Mapping[str, str]) -> Planned:
    """Plan a read of remote storage in a new process."""
    given = json.dumps({"tier": str(root), **options})
    done = subprocess.run(
        [sys.executable, "-c", _PLAN, given], stdout=subprocess.PIPE, text=True, check=True, timeout=600
    )
    return Planned(*json.loads(done.stdout))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        make_tier(Path(folder), int(sys.argv[1]), int(sys.argv[2]))
        for given in ({}, {"isolation.level": "read_committed"}):
            print(given, plan_elsewhere(Path(folder), given), flush=True)

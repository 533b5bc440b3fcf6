"""Faults of what a log directory keeps beside its logs: checkpoint lines, who writes them, what fails."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from nilometer.broker.replicas.log_disposal import LogDisposal
from nilometer.simulation.fault_kinds import Kind
from nilometer.storage.directories.checkpoint_files import CheckpointFiles
from planted_faults.planting import Patch, PlantedFault


def believe_lines_of_earlier_topics(patch: Patch) -> None:
    begin = LogDisposal.__init__

    def without_requests(self: LogDisposal, *arguments: Any, **named: Any) -> None:
        begin(self, *arguments, **named)
        self._checkpoints = SimpleNamespace(request=lambda directory: None)  # type: ignore[assignment]

    patch.setattr(LogDisposal, "__init__", without_requests)
    patch.setattr(CheckpointFiles, "may_have_line", lambda self, key: False)


FAULTS = (
    PlantedFault(
        name="believe-lines-of-earlier-topics",
        what="a checkpoint line of a deleted topic counts for the next one of its name",
        plant=believe_lines_of_earlier_topics,
        kinds=(Kind.CRASH_ALL,),
        seeds=20,
        reuses_names=True,
        mean_gap_s=3.0,
        settings={"replica.high.watermark.checkpoint.interval.ms": "5000"},
    ),
)

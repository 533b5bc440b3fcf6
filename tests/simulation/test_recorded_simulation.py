"""The recording of a simulated cluster: it is what happened, and recording changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import pytest

from nilometer.broker.replicas.hosted_partition import Partition
from nilometer.replication.leader import LeaderRole
from nilometer.simulation.checkers.running_brokers import LeaderInvariants
from nilometer.simulation.cluster import Cluster
from nilometer.simulation.cluster_recorder import ClusterRecorder
from nilometer.simulation.fault_kinds import Kind as Fault
from nilometer.simulation.plan import draw
from nilometer.simulation.recording import Header, Kind, Recording, RecordingWriter, Role, read_recording
from nilometer.simulation.replay import Moment, apply
from nilometer.simulation.run import Exit, run

SEED, MINUTES = 6, 0.1
PLAN = draw(SEED, MINUTES, [Fault.CRASH, Fault.CUT])


class Lines(list[str]):
    def recording(self) -> Recording:
        return read_recording(f"{line}\n".encode() for line in self)


class ComparingRecorder(ClusterRecorder):
    """Compares the fold of what it has recorded with the running brokers, whenever the run looks at them."""

    def __init__(self, cluster: Cluster, lines: Lines) -> None:
        super().__init__(cluster, RecordingWriter(lines.append, Header(title="t"), 1_000_000))
        self.lines = lines
        self.nodes = cluster.nodes
        self.moment = Moment()
        self.folded = 0
        self.compared = 0

    def look(self, findings: Iterable[str] = ()) -> None:
        super().look(findings)
        events = self.lines[:1] + self.lines[1 + self.folded :]
        for event in Lines(events).recording().events:
            apply(self.moment, self.folded, event)
            self.folded += 1
        for node in self.nodes.values():
            for partition in node.partitions if node.is_serving else ():
                if not partition.topic.startswith("__"):
                    self._compare(f"{partition.topic}-{partition.key.partition}", node.id, partition)

    def _compare(self, name: str, broker: int, partition: Partition) -> None:
        found, log, role = self.moment.replicas[name, broker], partition.log, partition.replica.role
        assert (found.log_start_offset, found.log_end_offset) == (log.log_start_offset, log.log_end_offset)
        assert (found.high_watermark, found.epochs) == (role.high_watermark, log.epochs.entries)
        isr = tuple(role.isr) if isinstance(role, LeaderRole) else ()
        assert (found.role is Role.LEADER, found.isr) == (isinstance(role, LeaderRole), isr)
        self.compared += 1


def test_a_recording_is_what_happened_and_the_run_takes_the_same_course_without_it() -> None:
    lines = Lines()
    made: list[ComparingRecorder] = []

    def record(cluster: Cluster) -> ClusterRecorder:
        made.append(ComparingRecorder(cluster, lines))
        return made[0]

    recorded, alone = run(PLAN, observe=record), run(PLAN)
    assert (recorded.exit, recorded.digest) == (Exit.CLEAN, alone.digest), (
        f"nilometer simulate --seed {SEED} --minutes {MINUTES} --faults crash,cut"
    )
    assert made[0].compared > 100
    found = lines.recording()
    assert found.end is not None
    assert not found.end.is_cut
    kinds = Counter(event.kind for event in found.events)
    assert {Kind.SENT, Kind.DELIVERED, Kind.APPEND, Kind.HIGH_WATERMARK, Kind.ROLE, Kind.FAULT} <= set(kinds)
    assert found.events[-1].text == "The run has ended. No checker found a violation."
    check_messages(found)


def check_messages(recording: Recording) -> None:
    """Each message that arrives was sent before, once, with the same text, and arrives or is dropped once."""
    texts = [event.text for event in recording.events if event.kind is Kind.DELIVERED]
    for begin in ("Fetch ", "Fetch response ", "AlterPartition "):
        assert any(text.startswith(begin) for text in texts), begin
    sent: dict[int, tuple[str, int]] = {}
    for event in recording.events:
        if event.kind is Kind.SENT:
            assert event.message not in sent
            sent[event.message] = (event.text, event.at_us)
        elif event.kind in (Kind.DELIVERED, Kind.DROPPED):
            text, at_us = sent.pop(event.message)
            assert (text, at_us <= event.at_us) == (event.text, True)
    assert len(sent) < 100, "messages in flight at the end"


def test_a_recording_begins_at_its_time_and_ends_at_its_limit() -> None:
    lines = Lines()
    begin_s, limit = 2.0, 60

    def record(cluster: Cluster) -> ClusterRecorder:
        writer = RecordingWriter(lines.append, Header(title="t"), events_max=limit)
        return ClusterRecorder(cluster, writer, from_s=begin_s)

    run(PLAN, observe=record)
    found = lines.recording()
    assert found.events[0].at_us >= begin_s * 1_000_000
    assert "at its limit of 60 events" in found.events[limit].text
    assert (found.end.is_cut, len(found.events)) == (True, limit + 2), "the limit's note, and the end's"
    first = {event.kind for event in found.events[:30]}
    assert Kind.REPLICA in first, "the replicas are recorded as they are at the beginning"


def test_a_finding_is_recorded_when_the_checker_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = Lines()
    look = LeaderInvariants.look

    def find(self: LeaderInvariants, damaged: Iterable[str]) -> None:
        look(self, damaged)
        if self.looks == 20:
            self.violations.append("a planted violation")

    monkeypatch.setattr(LeaderInvariants, "look", find)
    plan = draw(SEED, MINUTES, [Fault.CRASH])
    writer = RecordingWriter(lines.append, Header(title="t"), events_max=1_000_000)
    assert run(plan, observe=lambda cluster: ClusterRecorder(cluster, writer)).exit is Exit.WRONG_RESULT
    events = lines.recording().events
    (finding,) = [event for event in events if event.kind is Kind.FINDING]
    assert finding.text == "a planted violation"
    assert finding.at_us < events[-1].at_us
    assert events[-1].text == "The run has ended."

"""What is in the tier is compared with the log once, by epochs and by the CRCs of last batches."""

from __future__ import annotations

import pytest
from msgspec import structs

from nilometer.steps import at_once
from nilometer.tier import lineage as lineage_module
from nilometer.tier import plan
from nilometer.tier.format import Manifest, RemoteSegment
from nilometer.tier.lineage import BEHIND_MS_MAX, AsOf, LogLineage, WriterAhead
from nilometer.tier.plan import LocalSegment, LogView
from support.tier.remote_segments import TOPIC, manifest, segment

AS_OF = AsOf(leader_epoch=1, truncations=0)
HELD = structs.replace(
    manifest(*(segment(10 * number, 10 * number + 9, last_crc=number) for number in range(3))), writer="w"
)


def view(
    *, start: int = 0, local: int = 0, end: int = 30, epochs: tuple[tuple[int, int], ...] = ((0, 0),)
) -> LogView:
    sealed = [LocalSegment(base, base + 10, 100) for base in range(local, end - 9, 10)]
    return LogView(start, local, end, end, epochs, sealed, end - local)


def prove(
    lineage: LogLineage, held: Manifest, log: LogView, crcs: dict[int, int | None], as_of: AsOf = AS_OF
) -> list[int]:
    """Compare with a log that has these CRCs; return which segments were compared."""
    asked = list[int]()
    while (found := lineage.to_prove(held, log, as_of)) is not None:
        if found.last_crc is None:
            lineage.prove(found, None)
        else:
            asked.append(found.base_offset)
            lineage.prove(found, crcs[found.base_offset])
    return asked


def own(lineage: LogLineage, held: Manifest, log: LogView, as_of: AsOf = AS_OF) -> tuple[RemoteSegment, ...]:
    return lineage.own(held, log.log_end_offset, as_of, lambda: log).segments


SAME: dict[int, int | None] = {0: 0, 10: 1, 20: 2}


def test_each_segment_is_compared_once() -> None:
    lineage = LogLineage(0)
    assert prove(lineage, HELD, view(), SAME) == [0, 10, 20]
    assert prove(lineage, HELD, view(), SAME) == []
    longer = at_once(HELD.adding(segment(30, 39, last_crc=3), 0))
    assert prove(lineage, longer, view(end=40), {30: 3}) == [30]
    assert own(lineage, longer, view(end=40)) == longer.segments
    assert lineage.foreign is None


@pytest.mark.parametrize("changed", [AsOf(2, 0), AsOf(1, 1)])
def test_all_is_compared_again_with_a_log_of_another_leader_or_after_a_truncation(changed: AsOf) -> None:
    lineage = LogLineage(0)
    prove(lineage, HELD, view(), SAME)
    assert prove(lineage, HELD, view(), SAME, changed) == [0, 10, 20]


@pytest.mark.parametrize("changes", [{"writer": "another"}, {"leader_epoch": 1}])
def test_all_that_another_leader_has_written_is_compared(changes: dict[str, object]) -> None:
    lineage = LogLineage(0)
    prove(lineage, HELD, view(), SAME)
    assert prove(lineage, structs.replace(HELD, **changes), view(), SAME) == [0, 10, 20]


def test_what_the_log_has_no_more_cannot_be_compared() -> None:
    assert prove(LogLineage(0), HELD, view(local=20), SAME) == [20]
    assert prove(LogLineage(0), HELD, view(start=25, local=20), SAME) == [20], "its end is still readable"
    assert prove(LogLineage(0), HELD, view(start=10), SAME) == [10, 20]


def test_what_has_no_crc_or_other_epochs_or_is_beyond_the_end_is_not_compared() -> None:
    unknown = manifest(segment(0, 9), segment(10, 19, last_crc=1), segment(20, 29))
    assert prove(LogLineage(0), unknown, view(), SAME) == [10]
    assert prove(LogLineage(0), HELD, view(epochs=((0, 0), (1, 15))), SAME) == [0]
    assert prove(LogLineage(0), HELD, view(end=25), SAME) == [0, 10]


@pytest.mark.parametrize("claim", [0, 1])
def test_many_segments_are_compared_in_steps(claim: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_module, "SEGMENTS_OF_A_LINE", 2)
    held, log = manifest(*(segment(10 * at, 10 * at + 9) for at in range(5))), view(local=40, end=50)
    lineage, at_once = LogLineage(claim), list[int]()
    divergent = plan.divergent

    def count(
        held: Manifest, log: LogView, agreed: int = 0, until: int | None = None
    ) -> tuple[RemoteSegment, ...]:
        at_once.append((50 if until is None else 10 * until) - agreed)
        return divergent(held, log, agreed, until)

    monkeypatch.setattr(plan, "divergent", count)
    steps = 0
    while lineage.compare_some(held, log, AS_OF):
        steps += 1
    assert lineage.divergent(held, log, AS_OF) == held.segments[4:] * claim, "of a lower claim"
    assert (steps, at_once) == (3, [20, 20, 10, 0])


def test_many_segments_without_crcs_are_passed_over_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_module, "SEGMENTS_OF_A_LINE", 2)
    known = {at: at for at in (50, 60)}
    held = manifest(*(segment(at, at + 9, last_crc=known.get(at)) for at in range(0, 90, 10)))
    lineage, log, steps = LogLineage(0), view(end=90), list[int]()
    while (found := lineage.to_prove(held, log, AS_OF)) is not None:
        steps.append(found.base_offset)
        lineage.prove(found, found.last_crc)
    assert steps == [10, 30, 50, 60, 80]


def test_steps_end_where_records_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lineage_module, "SEGMENTS_OF_A_LINE", 1)
    lineage, log = LogLineage(0), view(epochs=((0, 0), (1, 10)))
    assert [lineage.compare_some(HELD, log, AS_OF) for _ in range(3)] == [True, False, False]
    assert lineage.divergent(HELD, log, AS_OF) == HELD.segments[1:]


def test_records_of_another_cluster_are_not_the_logs() -> None:
    lineage = LogLineage(0)
    assert own(lineage, HELD, view()) == HELD.segments
    assert prove(lineage, HELD, view(), SAME | {10: 7}) == [0, 10]
    assert lineage.foreign == HELD.segments[1]
    assert own(lineage, HELD, view()) == HELD.segments[:1]
    expired = structs.replace(HELD, number=1, segments=HELD.segments[2:])
    assert prove(lineage, expired, view(), SAME) == []
    assert own(lineage, expired, view()) == (), "what follows is of another cluster, too"


def test_a_batch_that_compaction_has_rewritten_proves_nothing() -> None:
    lineage = LogLineage(0)
    assert prove(lineage, HELD, view(), dict.fromkeys(SAME)) == [0, 10, 20]
    assert lineage.foreign is None


def test_other_records_after_an_unclean_election_are_not_another_clusters() -> None:
    lineage = LogLineage(0)
    log = view(epochs=((0, 0), (1, 15)))
    prove(lineage, HELD, log, SAME)
    assert lineage.foreign is None
    assert own(lineage, HELD, log) == HELD.segments[:1]
    assert lineage.divergent(HELD, log, AS_OF) == HELD.segments[1:]


def test_under_a_higher_claim_what_the_log_has_is_copied_again() -> None:
    lineage = LogLineage(1)
    assert prove(lineage, HELD, view(local=10), {}) == []
    assert lineage.divergent(HELD, view(local=10), AS_OF) == HELD.segments[1:]
    taken_over = structs.replace(HELD, claim=2)
    assert prove(lineage, taken_over, view(), {}) == []


def test_a_writer_that_knows_more_for_long_stays_ahead() -> None:
    writer, known = WriterAhead(0), TOPIC.metadata_entry
    assert writer.ahead_ms(HELD, known, 5) is None
    assert writer.ahead_ms(HELD, known - 1, 10) == 0
    assert writer.ahead_ms(HELD, known, 20) is None
    assert writer.ahead_ms(HELD, known - 1, 30) == 0
    assert writer.ahead_ms(HELD, known - 1, 30 + BEHIND_MS_MAX) == BEHIND_MS_MAX
    assert writer.is_ahead(HELD, known + 1), "its metadata are others"
    assert not writer.is_ahead(structs.replace(HELD, writer="another"), known)


def test_writers_with_a_lower_claim_are_not_ahead() -> None:
    assert not WriterAhead(1).is_ahead(HELD, 0)

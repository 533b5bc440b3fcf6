"""The health of a cluster, judged from what its brokers reported."""

from __future__ import annotations

import io
from collections.abc import Sequence

import msgspec
import pytest
from msgspec.structs import replace
from rich.console import Console

from nilometer.cli.status import document, picture
from nilometer.client.admin.cluster_health import (
    DOWN,
    RUNNING,
    UNREACHABLE,
    UNREGISTERED,
    BrokerHealth,
    ClusterHealth,
    FailedLogDirectory,
    Findings,
    Grade,
    RegisteredNode,
    cluster_health,
    problems,
)
from nilometer.client.admin.reassignments import OngoingMove
from nilometer.client.admin.replica_survey import BrokerAnswer, ReplicaRow, Survey
from nilometer.client.admin.transaction_admin import ActiveProducer, OpenTransaction
from nilometer.client.network.cluster_metadata import (
    BrokerNode,
    ClusterMetadata,
    PartitionMetadata,
    TopicMetadata,
    TopicPartition,
)
from nilometer.wire.own_apis import (
    FOLLOWER,
    LEADER,
    OFFLINE,
    BrokerState,
    CompactionState,
    DescribeReplicasResponse,
    HighWatermarkHoldState,
    LeaderState,
    ReplicaState,
    TierState,
)

PLACE = TopicPartition("clicks", 0)
REPLICAS = (1, 2, 3)
MIN_ISR = 2


def node(broker_id: int) -> BrokerNode:
    return BrokerNode(broker_id, "127.0.0.1", 9091 + broker_id)


def answer(broker_id: int, failure: str | None = None, *, number: int = 7) -> BrokerAnswer:
    if failure is not None:
        return BrokerAnswer(broker_id, node(broker_id), None, failure)
    state = BrokerState(
        broker_id=broker_id,
        broker_epoch=1,
        controller_id=1,
        controller_epoch=4,
        metadata_number=number,
        unclean_elections=0,
        longest_turn_us=12_400 if broker_id == 2 else 2_000,
        longest_turn="METADATA of 90 bytes from ::1",
    )
    return BrokerAnswer(
        broker_id,
        node(broker_id),
        DescribeReplicasResponse(cluster_id="c", broker=state, replicas=()),
        None,
    )


def row(
    broker_id: int,
    *,
    leader: int = 1,
    isr: tuple[int, ...] = REPLICAS,
    replicas: tuple[int, ...] = REPLICAS,
    offline: str | None = None,
    problems: tuple[str, ...] = (),
    silent: bool = False,
) -> ReplicaRow:
    if silent:
        return ReplicaRow(*PLACE, broker_id, None, "no response", None, None)
    leads = broker_id == leader and offline is None
    state = ReplicaState(
        topic=PLACE.topic,
        topic_id="t",
        partition=PLACE.partition,
        broker_id=broker_id,
        role=OFFLINE if offline is not None else LEADER if leads else FOLLOWER,
        leader_id=leader,
        leader_epoch=3,
        partition_epoch=5,
        replicas=replicas,
        isr=isr,
        in_sync=broker_id in isr,
        leader=leader_state(isr) if leads else None,
        problems=(offline,) if offline else problems,
    )
    return ReplicaRow(*PLACE, broker_id, state, None, broker_id in isr, None)


def leader_state(isr: tuple[int, ...]) -> LeaderState:
    return LeaderState(
        epoch_start_offset=0,
        isr=isr,
        maximal_isr=isr,
        pending_isr=None,
        needed_in_sync=MIN_ISR,
        hold=HighWatermarkHoldState(reason="not-held", text=""),
        followers=(),
    )


def survey(answers: Sequence[BrokerAnswer], rows: Sequence[ReplicaRow], leader: int = 1) -> Survey:
    part = PartitionMetadata(0, leader, 3, REPLICAS, (leader,) if leader >= 0 else (2,))
    metadata = ClusterMetadata(
        "c", 1, {one: node(one) for one in REPLICAS}, {"clicks": TopicMetadata("clicks", None, (part,))}
    )
    return Survey("c", 1, tuple(answers), tuple(rows), (), metadata)


def registered(*fenced: int) -> tuple[RegisteredNode, ...]:
    return tuple(
        RegisteredNode(id=one, host="127.0.0.1", port=9091 + one, is_fenced=one in fenced) for one in REPLICAS
    )


def health(
    rows: Sequence[ReplicaRow], *, answers: Sequence[BrokerAnswer] | None = None, fenced: tuple[int, ...] = ()
) -> ClusterHealth:
    asked = [answer(one) for one in REPLICAS] if answers is None else answers
    return cluster_health(Findings(survey=survey(asked, rows), registered=registered(*fenced)))


def test_a_cluster_with_everything_in_sync_is_healthy() -> None:
    found = health([row(one) for one in REPLICAS])
    assert found.grade is Grade.HEALTHY
    assert (found.controller_id, found.controller_epoch, found.metadata_number) == (1, 4, 7)
    assert [one.state for one in found.brokers] == [RUNNING] * 3
    assert not (found.offline or found.under_min_isr or found.under_replicated or found.missing)


def test_a_dead_follower_degrades_and_says_why_it_is_not_there() -> None:
    dead = answer(3, "cannot connect")
    rows = [row(1, isr=(1, 2)), row(2, isr=(1, 2)), row(3, silent=True)]
    found = health(rows, answers=[answer(1), answer(2), dead], fenced=(3,))
    assert found.grade is Grade.DEGRADED
    assert [one.partition for one in found.under_replicated] == [PLACE]
    assert not found.offline and not found.under_min_isr
    (missing,) = found.missing
    assert (missing.id, missing.state) == (3, UNREACHABLE)
    assert missing.reason is not None and "session" in missing.reason


def test_too_few_in_sync_is_unavailable() -> None:
    found = health([row(1, isr=(1,)), row(2, isr=(1,)), row(3, isr=(1,))])
    assert found.grade is Grade.UNAVAILABLE
    assert [one.needed_in_sync for one in found.under_min_isr] == [MIN_ISR]


def test_a_partition_without_a_leader_is_unavailable() -> None:
    found = health([row(one, leader=-1, isr=(3,)) for one in REPLICAS])
    assert found.grade is Grade.UNAVAILABLE
    assert [(one.leader, one.leader_responds) for one in found.offline] == [(-1, False)]


def test_a_partition_whose_leader_hangs_is_unavailable_before_its_election() -> None:
    answers = [answer(1), answer(2), answer(3, "no response within 2000 ms")]
    found = health([row(1, leader=3), row(2, leader=3), row(3, silent=True)], answers=answers)
    assert found.grade is Grade.UNAVAILABLE
    assert [(one.leader, one.leader_responds) for one in found.offline] == [(3, False)]


def test_without_any_description_the_metadata_counts() -> None:
    found = cluster_health(
        Findings(survey=survey([answer(1)], [row(one, silent=True) for one in REPLICAS], leader=-1))
    )
    (offline,) = found.offline
    assert (offline.leader, offline.isr) == (-1, (2,))


def test_a_controller_that_does_not_respond_is_none() -> None:
    found = health(
        [row(one, leader=2) for one in REPLICAS],
        answers=[answer(1, "no response"), answer(2), answer(3)],
    )
    assert (found.controller_id, found.grade) == (-1, Grade.UNAVAILABLE)


def test_a_broker_that_lost_its_session_responds_but_does_not_count() -> None:
    found = health([row(one) for one in REPLICAS], fenced=(2,))
    assert [one.state for one in found.brokers] == [RUNNING, UNREGISTERED, RUNNING]
    assert found.grade is Grade.DEGRADED


def test_the_newest_state_of_a_partition_counts() -> None:
    older = row(2, isr=(2,), leader=2)
    older = ReplicaRow(*PLACE, 2, msgspec.structs.replace(older.state, partition_epoch=4), None, True, None)
    assert health([row(1), older, row(3)]).grade is Grade.HEALTHY


def test_replicas_being_added_do_not_make_it_under_replicated() -> None:
    rows = [row(one, isr=(1, 2), replicas=REPLICAS) for one in REPLICAS]
    moves = {PLACE: OngoingMove(REPLICAS, (3,), ())}
    found = cluster_health(
        Findings(survey=survey([answer(1), answer(2), answer(3)], rows), registered=registered(), moves=moves)
    )
    assert found.grade is Grade.HEALTHY
    assert found.moves == moves


@pytest.mark.parametrize("kind", ["directory", "stopped", "failing", "hanging", "unknown"])
def test_every_other_problem_degrades(kind: str) -> None:
    rows = [row(one) for one in REPLICAS]
    if kind == "stopped":
        rows[2] = row(3, offline="the log directory /d failed: EIO")
    if kind == "failing":
        rows[2] = row(3, problems=("retention fails: EIO",))
    directory = FailedLogDirectory(broker_id=1, path="/d", reason="EIO")
    producer = ActiveProducer(7, 0, 0, 0, 0, 42)
    found = cluster_health(
        Findings(
            survey=survey([answer(one) for one in REPLICAS], rows),
            registered=registered(),
            failed_directories=(directory,) if kind == "directory" else (),
            hanging=(OpenTransaction(PLACE, producer),) if kind == "hanging" else (),
            unknown=("What hangs is not known",) if kind == "unknown" else (),
        )
    )
    assert found.grade is Grade.DEGRADED
    assert bool(found.stopped) == (kind in ("stopped", "failing"))


def test_brokers_of_a_folder_keep_their_process_and_its_reason() -> None:
    local = [
        BrokerHealth(id=1, host="h", port=1, state=RUNNING, pid=11),
        BrokerHealth(id=3, host="h", port=3, state=DOWN, reason="it was stopped"),
    ]
    answers = [answer(1), answer(2), answer(3, "cannot connect")]
    found = cluster_health(
        Findings(survey=survey(answers, [row(1), row(2), row(3, silent=True)]), registered=registered(3)),
        local,
    )
    assert [(one.id, one.state, one.pid, one.reason) for one in found.brokers] == [
        (1, RUNNING, 11, None),
        (2, RUNNING, None, None),
        (3, DOWN, None, "it was stopped"),
    ]


def test_nothing_that_runs_is_unavailable() -> None:
    local = [BrokerHealth(id=1, host="h", port=1, state=DOWN, reason="it was stopped")]
    found = cluster_health(Findings(survey=None), local)
    assert (found.grade, found.brokers) == (Grade.UNAVAILABLE, tuple(local))


@pytest.mark.parametrize(
    ("in_progress", "said"), [(True, ["1 logs are being compacted: clicks-0 on broker 2 (45%)"]), (False, [])]
)
def test_a_compaction_is_shown_while_it_lasts_and_is_no_problem(in_progress: bool, said: list[str]) -> None:
    state = CompactionState(
        in_progress=in_progress,
        age_ms=7,
        progress=0.45,
        bytes_total=100,
        bytes_written=1,
        records_read=9,
        records_kept=3,
    )
    rows = [row(1), row(2), row(3)]
    compacted = msgspec.structs.replace(rows[1].state, compaction=state)
    found = health([rows[0], replace(rows[1], state=compacted), rows[2]])
    assert found.grade is Grade.HEALTHY
    assert problems(found) == []
    (listed,) = document(found)["compactions"]
    assert (listed["topic"], listed["partition"], listed["broker_id"]) == ("clicks", 0, 2)
    assert (listed["in_progress"], listed["progress"], listed["records_kept"]) == (in_progress, 0.45, 3)
    console = Console(width=200, file=io.StringIO())
    console.print(picture(found))
    assert isinstance(console.file, io.StringIO)
    assert [line for line in console.file.getvalue().splitlines() if "compacted" in line] == said


def tiered(state: TierState) -> ClusterHealth:
    rows = [row(1), row(2), row(3)]
    leader = msgspec.structs.replace(rows[0].state, tier=state)
    return health([replace(rows[0], state=leader), *rows[1:]])


def lines(found: ClusterHealth) -> list[str]:
    console = Console(width=300, file=io.StringIO())
    console.print(picture(found))
    assert isinstance(console.file, io.StringIO)
    return [line for line in console.file.getvalue().splitlines() if "emote storage" in line]


def test_what_would_be_lost_with_all_disks_is_said_and_is_no_problem() -> None:
    found = tiered(
        TierState(
            end_offset=700, size_bytes=9_000, newest_ms=5, lag_segments=1, lag_bytes=80, oldest_segment=700,
            missing_records=42, missing_bytes=1_100, missing_ms=61_000,
        )
    )  # fmt: skip
    assert (found.grade, problems(found)) == (Grade.HEALTHY, [])
    assert lines(found) == [
        "Remote storage has 9,000 bytes of 1 partitions; not there yet: 42 records of 1 partitions, "
        "clicks-0 (42 records, 1,100 bytes, the last 61 s)"
    ]
    (listed,) = document(found)["tiers"]
    assert (listed["topic"], listed["partition"], listed["broker_id"]) == ("clicks", 0, 1)
    assert (listed["missing_records"], listed["missing_ms"], listed["oldest_segment"]) == (42, 61_000, 700)
    assert (listed["error"], listed["failing_ms"]) == (None, None)


def test_a_store_that_fails_degrades_and_is_said() -> None:
    found = tiered(TierState(end_offset=-1, error="s3://b: refused", failing_ms=7_000))
    assert found.grade is Grade.DEGRADED
    (problem,) = problems(found)
    assert problem == "Broker 1 cannot use remote storage of clicks-0, for 7 s: s3://b: refused"
    assert lines(found) == [problem, "What remote storage has of 1 partitions is not known yet: clicks-0"]
    (listed,) = document(found)["tiers"]
    assert (listed["end_offset"], listed["missing_records"], listed["error"]) == (
        None,
        None,
        "s3://b: refused",
    )


def test_a_broker_that_cannot_use_a_store_is_said_once() -> None:
    """What a store answers names an object, so that each partition has another reason."""
    leader = row(1)
    rows = list[ReplicaRow]()
    for partition in range(50):
        error = f"C/T/{partition}/head: no such folder"
        tier = TierState(end_offset=-1, error=error, failing_ms=1_000 * partition)
        state = replace(leader.state, partition=partition, tier=tier)
        rows.append(replace(leader, partition=partition, state=state))
    (problem,) = [one for one in problems(health(rows)) if "emote storage" in one]
    assert problem.startswith("Broker 1 cannot use remote storage of clicks-0, clicks-1, ")
    assert problem.endswith(" and 40 more, for 49 s: C/T/49/head: no such folder")


def test_the_longest_turn_of_each_event_loop_is_listed_and_a_long_one_is_said() -> None:
    found = health([row(one) for one in REPLICAS])
    assert found.grade is Grade.HEALTHY
    listed = document(found)["longest_turns"]
    assert [(one["broker_id"], one["cpu_us"]) for one in listed] == [(1, 2_000), (2, 12_400), (3, 2_000)]
    console = Console(width=200, file=io.StringIO())
    console.print(picture(found))
    assert isinstance(console.file, io.StringIO)
    assert [line for line in console.file.getvalue().splitlines() if "turn" in line] == [
        "The longest turn of the event loop of broker 2 took 12 ms of processor time: "
        "METADATA of 90 bytes from ::1"
    ]

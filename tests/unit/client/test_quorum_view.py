"""What a description of the metadata quorum says of a voter that is removed, and of clocks that differ."""

from __future__ import annotations

import uuid
from typing import Any

import pytest
from msgspec import structs

from nilometer.client.admin.cluster_health import Findings, cluster_health, problems, quorum_problems
from nilometer.client.admin.quorum_admin import METADATA_TOPIC, QuorumView, quorum_member, read_view
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import api

SPOKEN = api(ApiKey.DESCRIBE_QUORUM, 2)


def view(*fetched_ago_ms: int | None, leader_id: int = 1, **fields: Any) -> QuorumView:
    """Return the view of voters 1 to n, which have fetched so long ago; the leader's clock is wrong."""

    def state(node_id: int, ago_ms: int | None) -> Any:
        at_ms = -1 if ago_ms is None else 5_000 - ago_ms
        return SPOKEN.make(
            "ReplicaState",
            replica_id=node_id,
            replica_directory_id=uuid.UUID(int=node_id),
            log_end_offset=-1 if ago_ms is None else 10 - node_id,
            last_fetch_timestamp=at_ms,
            last_caught_up_timestamp=at_ms,
        )

    voters = tuple(state(number, ago) for number, ago in enumerate(fetched_ago_ms, start=1))
    partition = SPOKEN.make(
        "PartitionData",
        partition_index=0,
        leader_id=leader_id,
        leader_epoch=3,
        high_watermark=7,
        current_voters=voters,
        observers=(),
        **fields,
    )
    topic = SPOKEN.make("TopicData", topic_name=METADATA_TOPIC, partitions=(partition,))
    return read_view(SPOKEN.response(topics=(topic,), nodes=()))


def test_times_and_lags_are_those_before_the_leaders_own() -> None:
    found = view(0, 200, None)
    assert [one.fetched_ago_ms for one in found.voters] == [0, 200, None]
    assert [one.lag for one in found.voters] == [0, 1, None]
    assert [one.is_leader for one in found.voters] == [True, False, False]
    assert found.is_of_brokers


@pytest.mark.parametrize(
    ("ages", "removed", "left"),
    [
        ((0, 100, 100), 3, (2, 2, [])),
        ((0, 100, 9_000), 2, (2, 2, [3])),
        ((0, 100, None), 3, (2, 2, [])),
        ((0, 100, 9_000, None, 100), 5, (4, 3, [3, 4])),
        ((0, 100, 100), 1, (2, 2, [])),
        ((0,), 1, (0, 1, [])),
    ],
)
def test_what_is_left_without_a_voter(
    ages: tuple[int | None, ...], removed: int, left: tuple[int, int, list[int]]
) -> None:
    assert view(*ages).without(removed) == left


def test_a_quorum_without_a_leader_is_an_error_that_says_why() -> None:
    with pytest.raises(KafkaError, match="two are missing") as caught:
        view(error_code=ErrorCode.leader_not_available, error_message="two are missing", leader_id=-1)
    assert caught.value.code is ErrorCode.leader_not_available


def test_the_health_names_voters_that_do_not_fetch_and_why_there_is_no_leader() -> None:
    assert quorum_problems(None) == quorum_problems(view(0, 100, 100)) == []
    (silent,) = quorum_problems(view(0, 100, 9_000))
    assert "Voter 3 of the metadata quorum" in silent
    assert "2 of 3 voters are there, 2 are a majority" in silent
    assert quorum_problems("the metadata quorum has no leader") == ["The metadata quorum has no leader."]
    found = cluster_health(Findings(survey=None, quorum="the metadata quorum has no leader"))
    assert "The metadata quorum has no leader." in problems(found)


def test_a_node_is_named_with_its_lag() -> None:
    assert [quorum_member(one) for one in view(0, 100, None).voters] == [
        "1",
        "2 (lags by 1)",
        "3 (has not fetched)",
    ]


def test_of_two_folders_of_one_observer_the_one_that_fetched_last_counts() -> None:
    former, newest, silent = (
        structs.replace(one, node_id=4, is_leader=False) for one in view(8_000, 100, None, leader_id=2).voters
    )
    found = structs.replace(view(0, 100, 100), observers=(former, newest, silent))
    assert found.observer(4) == newest
    assert found.observer(5) is None

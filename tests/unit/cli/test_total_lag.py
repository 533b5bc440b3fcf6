"""The last line of `nilometer group describe`: the total lag, and why some of it is not known."""

from __future__ import annotations

from nilometer.cli.groups import total_lag
from nilometer.client.admin.group_admin import PartitionLag
from nilometer.client.network.cluster_metadata import TopicPartition


def lag(committed: int | None, end: int | None) -> PartitionLag:
    return PartitionLag(TopicPartition("t", 0), committed, 0, 0, end, end)


def test_a_group_that_starts_has_committed_nothing_yet() -> None:
    assert total_lag([lag(None, 10)] * 3) == "No offset is committed yet for 3 partitions."
    assert (
        total_lag([lag(4, 10), lag(None, 10)]) == "Total lag 6; no offset is committed yet for 1 partition."
    )


def test_other_sums() -> None:
    assert total_lag([lag(4, 10), lag(10, 10)]) == "Total lag 6."
    assert total_lag([lag(4, None)]) == "The end of 1 partition is not known, for lack of a leader."
    assert total_lag([]) == "Total lag 0."

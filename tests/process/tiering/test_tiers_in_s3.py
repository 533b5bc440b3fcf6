"""Tiered topics of three real brokers, whose remote storage is a bucket of an S3-compatible server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing

import pytest

from support.eventually import eventually
from support.s3_server import s3_server
from support.tier.tiered_cluster import TieredCluster


@pytest.fixture(scope="module")
def tiered(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TieredCluster]:
    with s3_server() as server:
        # A folder of its own: what other servers of this process were given is in the bucket, too.
        folder, uri = tmp_path_factory.mktemp("brokers"), server.url("brokers")
        with closing(TieredCluster(folder, uri, lambda: server.keys("brokers/"))) as cluster:
            yield cluster


def test_every_record_is_read_again_and_a_deleted_topic_leaves_no_object(tiered: TieredCluster) -> None:
    tiered.check_every_record_across_a_change_of_the_leader("bucket")
    assert tiered.objects()
    tiered.admin.delete_topics(["bucket"])["bucket"].result(30)
    eventually(lambda: not tiered.objects(), "no object is left")

"""A node of the metadata quorum that has stopped."""

from __future__ import annotations

import pytest

from nilometer.coordination.quorum.peers import Describe, Identify, PeerUnavailable, ReadIndex
from nilometer.raft.exchange import VoteRequest
from support.coordination.quorum_cluster import QuorumCluster


def test_a_node_that_was_closed_answers_no_other_node_and_gives_no_vote() -> None:
    async def scenario(cluster: QuorumCluster) -> None:
        (key, (_, node)), (other, _) = list(cluster.wire.nodes.items())[:2]
        assert await node.serve(Identify()) == key
        epoch, end = node.epoch, node.replica.log_end_offset
        await node.close()
        vote = VoteRequest(epoch + 1, other, key, epoch, end, pre_vote=False)
        for request in (Identify(), Describe(), ReadIndex(), vote):
            with pytest.raises(PeerUnavailable, match="was closed"):
                await node.serve(request)
        assert node.epoch == epoch

    QuorumCluster(1).run(scenario)

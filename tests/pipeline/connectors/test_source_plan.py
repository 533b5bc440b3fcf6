"""Positions while topics come and go: what was asked about one topic is never said of another."""

from __future__ import annotations

from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.pipeline.source.cluster.cluster_reader import ClusterReader
from nilometer.pipeline.source.cluster.cluster_source import find_latest
from nilometer.pipeline.source.source_options import parse_options
from support.pipeline.filled_topics import Sent


def test_a_topic_created_again_between_two_questions_is_asked_about_again(topics, monkeypatch):
    topic = topics.create(1)
    topics.send(topic, [Sent(0, None, b"first topic")] * 5)
    options = parse_options({"kafka.bootstrap.servers": topics.bootstrap, "subscribe": topic}, streaming=True)
    before = find_latest(options)
    asked = []
    ask = ClusterReader.offsets

    def and_meanwhile(self, wanted):
        if not asked:
            topics.delete(topic)
            topics.create(1, name=topic)
            topics.send(topic, [Sent(0, None, b"second topic")] * 8)
            # As after an answer that the topic is not known, which has the client look again.
            self._run(self._topics(options.selection), "metadata")
        asked.append(wanted)
        return ask(self, wanted)

    monkeypatch.setattr(ClusterReader, "offsets", and_meanwhile)
    try:
        after = find_latest(options, before)
    finally:
        ClusterReader.shared(options.consumer).close()
    assert len(asked) == 2
    assert after.offsets == {TopicPartition(topic, 0): 8}
    assert not before.is_same_topic(topic, after)

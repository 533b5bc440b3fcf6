"""One call of a command-line tool of Kafka, and what must come of it."""

from __future__ import annotations

from dataclasses import dataclass

CLASSES = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions.sh": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics.sh": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster.sh": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs.sh": "org.apache.kafka.tools.ConfigCommand",
    "kafka-console-consumer.sh": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer.sh": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups.sh": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-consumer-perf-test.sh": "org.apache.kafka.tools.ConsumerPerformance",
    "kafka-delegation-tokens.sh": "org.apache.kafka.tools.DelegationTokenCommand",
    "kafka-delete-records.sh": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-features.sh": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets.sh": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups.sh": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election.sh": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs.sh": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum.sh": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test.sh": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions.sh": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-share-groups.sh": "org.apache.kafka.tools.consumer.group.ShareGroupCommand",
    "kafka-streams-groups.sh": "org.apache.kafka.tools.streams.StreamsGroupCommand",
    "kafka-topics.sh": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions.sh": "org.apache.kafka.tools.TransactionsCommand",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCase:
    tool: str
    asked: str
    """The subcommand and the options that the row of the table is about."""
    arguments: tuple[str, ...]
    shows: str
    """A regular expression that what the tool prints matches somewhere."""
    status: int | None = 0
    """None: what the tool returns says nothing."""
    refused: str = ""
    """Why the broker does not do it; the tool says so, and ends."""
    input: str = ""


def tool_case(
    tool: str,
    asked: str,
    more: str = "",
    *,
    shows: str,
    status: int | None = 0,
    refused: str = "",
    input: str = "",
    servers: str = "--bootstrap-server",
) -> ToolCase:
    """``asked`` are arguments, in which a word in capitals stands for the next of ``more``."""
    values = iter(more.split("|")) if more else iter(())
    words = [next(values) if word.isupper() else word for word in asked.split()]
    assert not list(values), f"{tool} {asked}: too many values"
    first = (servers, "{broker}") if servers else ()
    return ToolCase(
        tool=tool,
        asked=asked,
        arguments=(*first, *words),
        shows=shows,
        status=status,
        refused=refused,
        input=input,
    )

"""What Kafka's command-line tools are asked of a broker, in order: each case sees what those before it did.

``{broker}`` stands for the broker's address, ``{folder}`` for a folder of files, ``{topic_id}`` for the id of
the topic ``tools``, ``{hanging}`` for the first offset of a transaction that its coordinator does not know.
"""

from __future__ import annotations

from dataclasses import dataclass

CLASSES = {
    "kafka-acls.sh": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions.sh": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-client-metrics.sh": "org.apache.kafka.tools.ClientMetricsCommand",
    "kafka-cluster.sh": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs.sh": "kafka.admin.ConfigCommand",
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


def _case(
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


def _topics(asked: str, more: str = "", *, shows: str, status: int | None = 0) -> ToolCase:
    return _case("kafka-topics.sh", asked, more, shows=shows, status=status)


TOPICS = (
    _topics(
        "--create --topic T --partitions N --replication-factor N --config S",
        "tools|2|1|retention.ms=60000",
        shows="Created topic tools",
    ),
    _topics("--create --topic T --if-not-exists", "tools", shows=""),
    _topics("--create --topic T", "tools", shows="already exists", status=1),
    _topics("--create --topic T --replica-assignment R", "placed|1,1", shows="Created topic placed"),
    _topics("--list", shows="(?m)^tools$"),
    _topics("--list --exclude-internal", shows="(?m)^placed$"),
    _topics("--describe", shows=r"Topic: tools\b.*PartitionCount: 2"),
    _topics("--describe --topic T", "tools", shows=r"Leader: 1\s+Replicas: 1\s+Isr: 1\s+Elr:"),
    _topics("--describe --topic-id I", "{topic_id}", shows="Topic: tools"),
    _topics("--describe --topics-with-overrides", shows=r"retention\.ms=60000"),
    _topics("--describe --under-replicated-partitions", shows=r"\A\s*\Z"),
    _topics("--describe --unavailable-partitions", shows=r"\A\s*\Z"),
    _topics("--describe --under-min-isr-partitions", shows=r"\A\s*\Z"),
    _topics("--describe --at-min-isr-partitions", shows="Topic: tools"),
    _topics("--describe --partition-size-limit-per-response N", "1", shows="Partition: 1"),
    _topics("--alter --topic T --partitions N", "tools|3", shows=""),
    _topics("--alter --topic T --partitions N", "tools|2", shows="would not be an increase", status=1),
    _topics("--delete --topic T", "placed", shows=""),
    _topics("--delete --topic T --if-exists", "placed", shows=""),
)


def _configs(
    asked: str, more: str = "", *, shows: str, status: int | None = 0, refused: str = ""
) -> ToolCase:
    return _case("kafka-configs.sh", asked, more, shows=shows, status=status, refused=refused)


CONFIGS = (
    _configs(
        "--alter --entity-type topics --entity-name T --add-config S",
        "tools|retention.ms=70000,cleanup.policy=[compact,delete]",
        shows="Completed updating config for topic tools",
    ),
    _configs("--describe --entity-type topics --entity-name T", "tools", shows=r"retention\.ms=70000"),
    _configs("--describe --entity-type topics --entity-name T --all", "tools", shows=r"segment\.bytes="),
    _configs(
        "--alter --entity-type topics --entity-name T --delete-config S",
        "tools|cleanup.policy",
        shows="Completed",
    ),
    _configs(
        "--alter --entity-type topics --entity-name T --add-config-file F",
        "tools|{folder}/topic.properties",
        shows="Completed",
    ),
    _configs("--describe --entity-type topics", shows="Dynamic configs for topic tools"),
    _configs(
        "--alter --entity-type topics --entity-name T --add-config S",
        "tools|nope=1",
        shows="Unknown topic config name: nope",
        status=1,
    ),
    _configs(
        "--alter --entity-type brokers --entity-name B --add-config S",
        "1|follower.replication.throttled.rate=1000000",
        shows="Completed updating config for broker 1",
    ),
    _configs("--describe --entity-type brokers --entity-name B", "1", shows=r"throttled\.rate=1000000"),
    _configs("--describe --entity-type brokers --entity-name B --all", "1", shows=r"node\.id=1"),
    _configs(
        "--alter --entity-type brokers --entity-default --add-config S",
        "log.retention.ms=80000",
        shows="Completed updating default config for brokers",
    ),
    _configs("--describe --entity-type brokers --entity-default", shows=r"log\.retention\.ms=80000"),
    _configs(
        "--alter --entity-type brokers --entity-default --delete-config S",
        "log.retention.ms",
        shows="Completed",
    ),
    _configs("--describe --entity-type broker-loggers --entity-name B", "1", shows=r"nilometer\.broker="),
    _configs(
        "--alter --entity-type broker-loggers --entity-name B --add-config S",
        "1|nilometer.broker=DEBUG",
        shows="Completed updating config for broker-logger 1",
    ),
    _configs(
        "--alter --entity-type broker-loggers --entity-name B --delete-config S",
        "1|nilometer.broker",
        shows="Completed",
    ),
    _configs(
        "--alter --entity-type groups --entity-name G --add-config S",
        "readers|consumer.session.timeout.ms=50000",
        shows="Single groups have no settings",
        status=1,
        refused="single groups have no settings of their own: `group.*` keys of the brokers",
    ),
    _configs("--describe --entity-type client-metrics", shows=r"\A\s*\Z"),
    _configs(
        "--alter --entity-type client-metrics --entity-name M --add-config S",
        "m|interval.ms=1000",
        shows="cannot be altered",
        status=1,
        refused="clients' metrics are not collected",
    ),
    _configs("--describe --entity-type users", shows=r"\A\s*\Z"),
    _configs("--describe --entity-type clients", shows=r"\A\s*\Z"),
    _configs("--describe --entity-type ips", shows=r"\A\s*\Z"),
    _configs(
        "--alter --entity-type clients --entity-name C --add-config S",
        "c|producer_byte_rate=1000",
        shows="UnsupportedVersionException|does not support",
        status=1,
        refused="there are no quotas",
    ),
)

RECORDS = (
    _case(
        "kafka-console-producer.sh",
        "--topic T",
        "tools",
        shows="",
        input="one\ntwo\nthree\n",
    ),
    _case(
        "kafka-console-producer.sh",
        "--topic T --property P --property P --compression-codec C --producer-property P",
        "tools|parse.key=true|key.separator=:|zstd|acks=all",
        shows="",
        input="k:four\n",
    ),
    _case(
        "kafka-console-consumer.sh",
        "--topic T --from-beginning --max-messages N --timeout-ms MS",
        "tools|4|60000",
        shows="Processed a total of 4 messages",
    ),
    _case(
        "kafka-console-consumer.sh",
        "--topic T --group G --from-beginning --max-messages N --timeout-ms MS",
        "tools|readers|2|60000",
        shows="Processed a total of 2 messages",
    ),
    _case(
        "kafka-console-consumer.sh",
        "--topic T --isolation-level L --from-beginning --property P --max-messages N --timeout-ms MS",
        "tools|read_committed|print.key=true|4|60000",
        shows=r"k\tfour",
    ),
    _case(
        "kafka-producer-perf-test.sh",
        "--topic T --num-records N --record-size B --throughput R --bootstrap-server S",
        "tools|2000|100|-1|{broker}",
        shows="2000 records sent",
        servers="",
    ),
    _case(
        "kafka-producer-perf-test.sh",
        "--topic T --num-records N --record-size B --throughput R --transactional-id X --bootstrap-server S",
        "tools|2000|100|-1|perf|{broker}",
        shows="2000 records sent",
        servers="",
    ),
    _case(
        "kafka-consumer-perf-test.sh",
        "--topic T --num-records N --timeout MS",
        "tools|2000|60000",
        shows=r"data\.consumed\.in\.MB",
    ),
    _configs(
        "--describe --entity-type groups --entity-name G",
        "readers",
        shows="Dynamic configs for group readers",
    ),
    _case("kafka-get-offsets.sh", "--topic T", "tools", shows=r"tools:0:\d+"),
    _case("kafka-get-offsets.sh", "--topic T --time earliest", "tools", shows="tools:0:0"),
    _case("kafka-get-offsets.sh", "--topic T --time max-timestamp", "tools", shows=r"tools:\d:\d+"),
    _case("kafka-get-offsets.sh", "--topic T --time earliest-local", "tools", shows="tools:0:0"),
    _case("kafka-get-offsets.sh", "--topic T --time latest-tiered", "tools", shows=""),
    _case("kafka-get-offsets.sh", "--topic T --time earliest-pending-upload", "tools", shows=""),
    _case(
        "kafka-get-offsets.sh",
        "--topic-partitions P --time N",
        "tools:1|0",
        shows=r"tools:1:\d+",
    ),
    _case("kafka-get-offsets.sh", "--exclude-internal-topics", shows=r"tools:2:\d+"),
    _case(
        "kafka-delete-records.sh",
        "--offset-json-file F",
        "{folder}/delete.json",
        shows=r"partition: tools-0\s+low_watermark: 1",
    ),
    _case("kafka-log-dirs.sh", "--describe", shows='"partition":"tools-0"'),
    _case(
        "kafka-log-dirs.sh",
        "--describe --topic-list T --broker-list B",
        "tools|1",
        shows='"partition":"tools-2"',
    ),
)


def _groups(asked: str, more: str = "", *, shows: str, status: int | None = 0) -> ToolCase:
    return _case("kafka-consumer-groups.sh", asked, more, shows=shows, status=status)


GROUPS = (
    _groups("--list", shows="(?m)^readers$"),
    _groups("--list --state", shows=r"readers\s+.*Empty"),
    _groups("--list --type", shows=r"readers\s+.*Classic"),
    _groups("--list --state S --type T", "Empty|classic", shows="readers"),
    _groups("--describe --group G", "readers", shows=r"tools\s+0\s+\d+"),
    _groups("--describe --group G --offsets --verbose", "readers", shows=r"tools\s+0"),
    _groups("--describe --group G --members --verbose", "readers", shows="has no active members"),
    _groups("--describe --group G --state", "readers", shows="Empty"),
    _groups("--describe --all-groups", shows="readers"),
    _groups(
        "--reset-offsets --group G --topic T --to-earliest --dry-run", "readers|tools", shows=r"tools\s+0\s+1"
    ),
    _groups(
        "--reset-offsets --group G --topic T --to-offset N --execute",
        "readers|tools:1|3",
        shows=r"tools\s+1\s+3",
    ),
    _groups(
        "--reset-offsets --group G --all-topics --to-latest --execute", "readers", shows=r"tools\s+0\s+\d+"
    ),
    _groups(
        "--reset-offsets --group G --topic T --shift-by N --execute",
        "readers|tools:0|-1",
        shows=r"tools\s+0\s+\d+",
    ),
    _groups(
        "--reset-offsets --group G --topic T --to-datetime D --dry-run",
        "readers|tools|2020-01-01T00:00:00.000",
        shows=r"tools\s+1\s+0",
    ),
    _groups(
        "--reset-offsets --group G --topic T --by-duration D --dry-run",
        "readers|tools|PT1H",
        shows=r"tools\s+1\s+0",
    ),
    _groups(
        "--reset-offsets --group G --topic T --to-earliest --export --dry-run",
        "readers|tools",
        shows="tools,1,0",
    ),
    _groups(
        "--reset-offsets --group G --from-file F --execute",
        "readers|{folder}/offsets.csv",
        shows=r"tools\s+2\s+1",
    ),
    _groups("--delete-offsets --group G --topic T", "readers|tools:2", shows=r"tools\s+2\s+Successful"),
    _groups("--validate-regex R", "to+ls", shows="(?i)valid"),
    _groups("--delete --group G", "readers", shows="Deletion of requested consumer groups"),
    _case("kafka-groups.sh", "--list", shows="GROUP"),
    _case("kafka-groups.sh", "--list --consumer", shows=""),
    _case("kafka-groups.sh", "--list --group-type T --protocol P", "classic|consumer", shows=""),
    _case("kafka-groups.sh", "--list --share", shows=""),
    _case("kafka-groups.sh", "--list --streams", shows=""),
    _case(
        "kafka-share-groups.sh",
        "--describe --group G",
        "g",
        shows="(?i)not support|unsupported|UNSUPPORTED",
        status=None,
        refused="there are no share groups",
    ),
    _case(
        "kafka-streams-groups.sh",
        "--describe --group G",
        "g",
        shows="(?i)not support|unsupported|UNSUPPORTED",
        status=None,
        refused="there is no streams rebalance protocol: Kafka Streams uses the classic one",
    ),
)

REPLICAS = (
    _case(
        "kafka-leader-election.sh",
        "--election-type preferred --all-topic-partitions",
        shows="(?i)election|already|^\\s*$",
    ),
    _case(
        "kafka-leader-election.sh",
        "--election-type preferred --topic T --partition P",
        "tools|0",
        shows="(?i)not needed|Valid replica already elected",
    ),
    _case(
        "kafka-leader-election.sh",
        "--election-type unclean --topic T --partition P",
        "tools|0",
        shows="(?i)not needed|Valid replica already elected",
    ),
    _case(
        "kafka-leader-election.sh",
        "--election-type preferred --path-to-json-file F",
        "{folder}/elect.json",
        shows="(?i)not needed|Valid replica already elected",
    ),
    _case(
        "kafka-reassign-partitions.sh",
        "--generate --topics-to-move-json-file F --broker-list B",
        "{folder}/move.json|1",
        shows="Proposed partition reassignment configuration",
    ),
    _case(
        "kafka-reassign-partitions.sh",
        "--execute --reassignment-json-file F --throttle R",
        "{folder}/reassign.json|10000000",
        shows="Successfully started partition reassignment",
    ),
    _case(
        "kafka-reassign-partitions.sh",
        "--verify --reassignment-json-file F",
        "{folder}/reassign.json",
        shows="Reassignment of partition tools-0 is completed",
    ),
    _case("kafka-reassign-partitions.sh", "--list", shows="No partition reassignments found"),
    _case(
        "kafka-reassign-partitions.sh",
        "--cancel --reassignment-json-file F",
        "{folder}/reassign.json",
        shows="None of the specified partition reassignments are active",
    ),
)


def _features(asked: str, more: str = "", *, shows: str, status: int = 0, refused: str = "") -> ToolCase:
    return _case("kafka-features.sh", asked, more, shows=shows, status=status, refused=refused)


CLUSTER = (
    _case(
        "kafka-cluster.sh", "cluster-id --bootstrap-server S", "{broker}", shows="Cluster ID: ", servers=""
    ),
    _case(
        "kafka-cluster.sh",
        "list-endpoints --bootstrap-server S",
        "{broker}",
        shows=r"127\.0\.0\.1",
        servers="",
    ),
    _case(
        "kafka-cluster.sh",
        "unregister --bootstrap-server S --id B",
        "{broker}|1",
        shows="Broker 1 is alive",
        status=1,
        refused="while the broker is alive: it would register again at once",
        servers="",
    ),
    _case("kafka-broker-api-versions.sh", "", shows=r"Produce\(0\): 0 to 13"),
    _features("describe", shows=r"transaction\.version\s+.*FinalizedVersionLevel: 2"),
    _features("downgrade --feature F --dry-run", "transaction.version=1", shows="can be downgraded to 1"),
    _features("downgrade --feature F", "transaction.version=1", shows="was downgraded to 1"),
    _features("upgrade --feature F --dry-run", "transaction.version=2", shows="can be upgraded to 2"),
    _features("upgrade --feature F", "transaction.version=2", shows="was upgraded to 2"),
    _features("downgrade --feature F --unsafe", "group.version=0", shows="was downgraded to 0"),
    _features(
        "upgrade --feature F --feature F", "group.version=1|transaction.version=2", shows="was upgraded"
    ),
    _features("disable --feature F", "group.version", shows="group.version was disabled"),
    _features("upgrade --feature F", "group.version=1", shows="was upgraded to 1"),
    _features(
        "upgrade --feature F",
        "transaction.version=9",
        shows="only supports versions 0-2",
        status=1,
    ),
    _features(
        "upgrade --release-version V",
        "4.3",
        shows="does not support this feature",
        status=1,
        refused="it names features that are not here (KRaft, share and streams groups): use `--feature`",
    ),
    _features("upgrade --metadata V", "4.3-IV0", shows="was upgraded to 30"),
    _features(
        "downgrade --metadata V",
        "4.2-IV1",
        shows="only supports versions 30-30",
        status=1,
        refused="there is one `metadata.version`",
    ),
    _features("version-mapping", shows=r"metadata\.version=30"),
    _features("feature-dependencies --feature F", "transaction.version=2", shows="has no dependencies"),
    _case("kafka-metadata-quorum.sh", "describe --status", shows=r"LeaderId:\s+1"),
    _case("kafka-metadata-quorum.sh", "describe --replication", shows="Leader"),
    _case("kafka-metadata-quorum.sh", "describe --replication --human-readable", shows="Leader"),
    _case(
        "kafka-metadata-quorum.sh",
        "remove-controller --controller-id C --controller-directory-id D",
        "1|AAAAAAAAAAAAAAAAAAAAAQ",
        shows="(?i)not support|UnsupportedVersion",
        status=1,
        refused="there is no KRaft quorum: any broker may become controller",
    ),
    _case("kafka-client-metrics.sh", "--list", shows=r"\A\s*\Z"),
    _case("kafka-client-metrics.sh", "--describe --name M", "m", shows="m"),
    _case(
        "kafka-client-metrics.sh",
        "--alter --name M --interval MS",
        "m|1000",
        shows="cannot be altered",
        status=1,
        refused="clients' metrics are not collected",
    ),
)

SECURITY = (
    _case(
        "kafka-acls.sh",
        "--list",
        shows="No Authorizer is configured",
        status=None,
        refused="there is no authorizer",
    ),
    _case(
        "kafka-acls.sh",
        "--add --allow-principal P --operation O --topic T",
        "User:a|Read|tools",
        shows="No Authorizer is configured",
        status=None,
        refused="there is no authorizer",
    ),
    _case(
        "kafka-delegation-tokens.sh",
        "--create --max-life-time-period N --command-config F",
        "-1|{folder}/client.properties",
        shows="(?i)not support|UnsupportedVersion",
        status=1,
        refused="there are no delegation tokens",
    ),
)

TRANSACTIONS = (
    _case("kafka-transactions.sh", "list", shows=r"perf\s+1\s+\d+\s+CompleteCommit"),
    _case("kafka-transactions.sh", "list --duration-filter MS", "3600000", shows="TransactionalId"),
    _case("kafka-transactions.sh", "list --transactional-id-pattern R", "per.", shows="perf"),
    _case("kafka-transactions.sh", "describe --transactional-id X", "perf", shows="CompleteCommit"),
    _case(
        "kafka-transactions.sh", "describe-producers --topic T --partition P", "tools|0", shows="ProducerId"
    ),
    _case(
        "kafka-transactions.sh",
        "find-hanging --topic T --max-transaction-timeout M",
        "tools|1",
        shows=r"tools\s+0\s+\d+",
    ),
    _case(
        "kafka-transactions.sh",
        "find-hanging --broker-id B --max-transaction-timeout M",
        "1|1",
        shows=r"tools\s+0\s+\d+",
    ),
    _case(
        "kafka-transactions.sh",
        "abort --topic T --partition P --start-offset N",
        "tools|0|{hanging}",
        shows=r"\A\s*\Z",
    ),
    _case(
        "kafka-transactions.sh",
        "abort --topic T --partition P --producer-id I --producer-epoch E --coordinator-epoch C",
        "tools|1|{hanging_producer}|0|0",
        shows=r"\A\s*\Z",
    ),
    _case(
        "kafka-transactions.sh",
        "find-hanging --broker-id B",
        "1",
        shows=r"(?m)^Topic\s+Partition.*\n?\s*\Z",
    ),
    _case(
        "kafka-transactions.sh",
        "forceTerminateTransaction --transactionalId X",
        "perf",
        shows="",
    ),
)

CASES = (*TOPICS, *CONFIGS, *RECORDS, *GROUPS, *REPLICAS, *CLUSTER, *SECURITY, *TRANSACTIONS)

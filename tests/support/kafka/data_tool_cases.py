"""Calls of Kafka's tools about topics, settings, records and groups, in order."""

from __future__ import annotations

from .tool_case import ToolCase, tool_case


def _topics(asked: str, more: str = "", *, shows: str, status: int | None = 0) -> ToolCase:
    return tool_case("kafka-topics.sh", asked, more, shows=shows, status=status)


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
    return tool_case("kafka-configs.sh", asked, more, shows=shows, status=status, refused=refused)


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
        "readers|consumer.session.timeout.ms=50000,consumer.heartbeat.interval.ms=6000",
        shows="Completed updating config for group readers",
    ),
    _configs(
        "--describe --entity-type groups --entity-name G",
        "readers",
        shows=r"consumer\.session\.timeout\.ms=50000.*DYNAMIC_GROUP_CONFIG",
    ),
    _configs("--describe --entity-type groups", shows=r"consumer\.heartbeat\.interval\.ms=6000"),
    _configs(
        "--alter --entity-type groups --entity-name G --add-config S",
        "readers|consumer.session.timeout.ms=1",
        shows=r"InvalidConfigurationException.*group\.consumer\.min\.session\.timeout\.ms",
        status=1,
    ),
    _configs(
        "--alter --entity-type groups --entity-name G --delete-config S",
        "readers|consumer.session.timeout.ms,consumer.heartbeat.interval.ms",
        shows="Completed updating config for group readers",
    ),
    _configs("--describe --entity-type client-metrics", shows=r"\A\s*\Z"),
    _configs(
        "--alter --entity-type client-metrics --entity-name M --add-config S",
        "m|interval.ms=1000",
        shows="Client metrics are not collected",
        status=1,
        refused="clients' metrics are not collected",
    ),
    _configs("--describe --entity-type users", shows=r"\A\s*\Z"),
    _configs(
        "--alter --entity-type users --entity-name U --add-config S",
        "alice|SCRAM-SHA-256=[iterations=8192,password=secret]",
        shows="Completed updating config for user alice",
    ),
    _configs(
        "--describe --entity-type users --entity-name U",
        "alice",
        shows="SCRAM credential configs for user-principal 'alice' are SCRAM-SHA-256=iterations=8192",
    ),
    _configs(
        "--alter --entity-type users --entity-name U --delete-config S",
        "alice|SCRAM-SHA-256",
        shows="Completed updating config for user alice",
    ),
    _configs("--describe --entity-type clients", shows=r"\A\s*\Z"),
    _configs("--describe --entity-type ips", shows=r"\A\s*\Z"),
    _configs(
        "--alter --entity-type clients --entity-name C --add-config S",
        "c|producer_byte_rate=1000",
        shows="Completed updating config for client c",
    ),
    _configs(
        "--describe --entity-type clients --entity-name C",
        "c",
        shows="Quota configs for client-id 'c' are producer_byte_rate=1000",
    ),
    _configs(
        "--alter --entity-type clients --entity-name C --delete-config S",
        "c|producer_byte_rate",
        shows="Completed updating config for client c",
    ),
    _configs(
        "--alter --entity-type users --entity-default --add-config S",
        "request_percentage=500,controller_mutation_rate=1000",
        shows="Completed updating default config for users",
    ),
    _configs(
        "--alter --entity-type ips --entity-name A --add-config S",
        "127.0.0.9|connection_creation_rate=10",
        shows="Completed updating config for ip 127.0.0.9",
    ),
)

RECORDS = (
    tool_case(
        "kafka-console-producer.sh",
        "--topic T",
        "tools",
        shows="",
        input="one\ntwo\nthree\n",
    ),
    tool_case(
        "kafka-console-producer.sh",
        "--topic T --property P --property P --compression-codec C --producer-property P",
        "tools|parse.key=true|key.separator=:|zstd|acks=all",
        shows="",
        input="k:four\n",
    ),
    tool_case(
        "kafka-console-consumer.sh",
        "--topic T --from-beginning --max-messages N --timeout-ms MS",
        "tools|4|60000",
        shows="Processed a total of 4 messages",
    ),
    tool_case(
        "kafka-console-consumer.sh",
        "--topic T --group G --from-beginning --max-messages N --timeout-ms MS",
        "tools|readers|2|60000",
        shows="Processed a total of 2 messages",
    ),
    tool_case(
        "kafka-console-consumer.sh",
        "--topic T --isolation-level L --from-beginning --property P --max-messages N --timeout-ms MS",
        "tools|read_committed|print.key=true|4|60000",
        shows=r"k\tfour",
    ),
    tool_case(
        "kafka-producer-perf-test.sh",
        "--topic T --num-records N --record-size B --throughput R --bootstrap-server S",
        "tools|2000|100|-1|{broker}",
        shows="2000 records sent",
        servers="",
    ),
    tool_case(
        "kafka-producer-perf-test.sh",
        "--topic T --num-records N --record-size B --throughput R --transactional-id X --bootstrap-server S",
        "tools|2000|100|-1|perf|{broker}",
        shows="2000 records sent",
        servers="",
    ),
    tool_case(
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
    tool_case("kafka-get-offsets.sh", "--topic T", "tools", shows=r"tools:0:\d+"),
    tool_case("kafka-get-offsets.sh", "--topic T --time earliest", "tools", shows="tools:0:0"),
    tool_case("kafka-get-offsets.sh", "--topic T --time max-timestamp", "tools", shows=r"tools:\d:\d+"),
    tool_case("kafka-get-offsets.sh", "--topic T --time earliest-local", "tools", shows="tools:0:0"),
    tool_case("kafka-get-offsets.sh", "--topic T --time latest-tiered", "tools", shows=""),
    tool_case("kafka-get-offsets.sh", "--topic T --time earliest-pending-upload", "tools", shows=""),
    tool_case(
        "kafka-get-offsets.sh",
        "--topic-partitions P --time N",
        "tools:1|0",
        shows=r"tools:1:\d+",
    ),
    tool_case("kafka-get-offsets.sh", "--exclude-internal-topics", shows=r"tools:2:\d+"),
    tool_case(
        "kafka-delete-records.sh",
        "--offset-json-file F",
        "{folder}/delete.json",
        shows=r"partition: tools-0\s+low_watermark: 1",
    ),
    tool_case("kafka-log-dirs.sh", "--describe", shows='"partition":"tools-0"'),
    tool_case(
        "kafka-log-dirs.sh",
        "--describe --topic-list T --broker-list B",
        "tools|1",
        shows='"partition":"tools-2"',
    ),
)


def _groups(asked: str, more: str = "", *, shows: str, status: int | None = 0) -> ToolCase:
    return tool_case("kafka-consumer-groups.sh", asked, more, shows=shows, status=status)


def _streams(asked: str, more: str = "", *, shows: str, status: int | None = 0) -> ToolCase:
    return tool_case("kafka-streams-groups.sh", asked, more, shows=shows, status=status)


STREAMS = (
    _streams("--list", shows="(?m)^counters$"),
    _streams("--list --state", shows=r"counters\s+Stable"),
    _streams("--describe --group G", "counters", shows=r"counters\s+tools\s+0"),
    _streams("--describe --group G --offsets --verbose", "counters", shows=r"counters\s+tools\s+0\s+1"),
    _streams("--describe --group G --state --verbose", "counters", shows="Stable"),
    _streams("--describe --group G --members --verbose", "counters", shows=r"counters.*\bm\b"),
)
"""Those for which the streams group ``counters`` has a member, ``m``."""
STREAMS_WITHOUT_MEMBERS = (
    _streams(
        "--reset-offsets --group G --input-topic T --to-earliest --dry-run",
        "counters|tools:0",
        shows=r"counters\s+tools\s+0",
    ),
    _streams(
        "--reset-offsets --group G --all-input-topics --to-latest --execute",
        "counters",
        shows=r"counters\s+tools\s+0",
    ),
    _streams("--delete-offsets --group G --input-topic T", "counters|tools:0", shows="Successful"),
    _streams("--delete --group G", "counters", shows="(?i)deletion of requested .*groups"),
)

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
    tool_case("kafka-groups.sh", "--list", shows="GROUP"),
    tool_case("kafka-groups.sh", "--list --consumer", shows=""),
    tool_case("kafka-groups.sh", "--list --group-type T --protocol P", "classic|consumer", shows=""),
    tool_case("kafka-groups.sh", "--list --share", shows=""),
    tool_case(
        "kafka-share-groups.sh",
        "--reset-offsets --group G --topic T --to-earliest --execute",
        "sharers|tools",
        shows="tools",
    ),
    tool_case("kafka-share-groups.sh", "--list", shows="sharers"),
    tool_case("kafka-share-groups.sh", "--describe --group G", "sharers", shows=r"sharers\s+tools\s+0"),
    tool_case("kafka-share-groups.sh", "--describe --group G --state", "sharers", shows="Empty"),
    tool_case(
        "kafka-share-groups.sh", "--delete-offsets --group G --topic T", "sharers|tools", shows="Successful"
    ),
    tool_case(
        "kafka-share-groups.sh",
        "--delete --group G",
        "sharers",
        shows="(?i)deletion of requested share groups",
    ),
    *STREAMS,
    *STREAMS_WITHOUT_MEMBERS,
    tool_case("kafka-groups.sh", "--list --streams", shows=""),
)

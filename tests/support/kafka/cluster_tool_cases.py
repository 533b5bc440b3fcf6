"""Calls of Kafka's tools about replicas, the cluster, security and transactions, in order."""

from __future__ import annotations

from nilometer.cluster.features import METADATA_FORMAT
from nilometer.cluster.records import FORMAT_VERSION

from .tool_case import ToolCase, tool_case

REPLICAS = (
    tool_case(
        "kafka-leader-election.sh",
        "--election-type preferred --all-topic-partitions",
        shows="(?i)election|already|^\\s*$",
    ),
    tool_case(
        "kafka-leader-election.sh",
        "--election-type preferred --topic T --partition P",
        "tools|0",
        shows="(?i)not needed|Valid replica already elected",
    ),
    tool_case(
        "kafka-leader-election.sh",
        "--election-type unclean --topic T --partition P",
        "tools|0",
        shows="(?i)not needed|Valid replica already elected",
    ),
    tool_case(
        "kafka-leader-election.sh",
        "--election-type preferred --path-to-json-file F",
        "{folder}/elect.json",
        shows="(?i)not needed|Valid replica already elected",
    ),
    tool_case(
        "kafka-reassign-partitions.sh",
        "--generate --topics-to-move-json-file F --broker-list B",
        "{folder}/move.json|1",
        shows="Proposed partition reassignment configuration",
    ),
    tool_case(
        "kafka-reassign-partitions.sh",
        "--execute --reassignment-json-file F --throttle R",
        "{folder}/reassign.json|10000000",
        shows="Successfully started partition reassignment",
    ),
    tool_case(
        "kafka-reassign-partitions.sh",
        "--verify --reassignment-json-file F",
        "{folder}/reassign.json",
        shows="Reassignment of partition tools-0 is completed",
    ),
    tool_case("kafka-reassign-partitions.sh", "--list", shows="No partition reassignments found"),
    tool_case(
        "kafka-reassign-partitions.sh",
        "--cancel --reassignment-json-file F",
        "{folder}/reassign.json",
        shows="None of the specified partition reassignments are active",
    ),
    *(
        case
        for folder in ("one", "two")
        for case in (
            tool_case(
                "kafka-reassign-partitions.sh",
                "--execute --reassignment-json-file F --replica-alter-log-dirs-throttle R",
                f"{{folder}}/to-{folder}.json|10000000",
                shows="Successfully started moving log directory",
            ),
            tool_case(
                "kafka-reassign-partitions.sh",
                "--verify --reassignment-json-file F --preserve-throttles",
                f"{{folder}}/to-{folder}.json",
                shows="Reassignment of replica tools-0-1 (completed successfully|is still in progress)",
            ),
            tool_case(
                "kafka-reassign-partitions.sh",
                "--cancel --reassignment-json-file F --preserve-throttles",
                f"{{folder}}/to-{folder}.json",
                shows="None of the specified partition|Successfully cancelled moves for",
            ),
        )
    ),
)


def _features(asked: str, more: str = "", *, shows: str, status: int = 0, refused: str = "") -> ToolCase:
    return tool_case("kafka-features.sh", asked, more, shows=shows, status=status, refused=refused)


CLUSTER = (
    tool_case(
        "kafka-cluster.sh", "cluster-id --bootstrap-server S", "{broker}", shows="Cluster ID: ", servers=""
    ),
    tool_case(
        "kafka-cluster.sh",
        "list-endpoints --bootstrap-server S",
        "{broker}",
        shows=r"127\.0\.0\.1",
        servers="",
    ),
    tool_case(
        "kafka-cluster.sh",
        "unregister --bootstrap-server S --id B",
        "{broker}|1",
        shows="Broker 1 is alive",
        status=1,
        refused="while the broker is alive: it would register again at once",
        servers="",
    ),
    tool_case("kafka-broker-api-versions.sh", "", shows=r"Produce\(0\): 0 to 13"),
    _features("describe", shows=r"transaction\.version\s+.*FinalizedVersionLevel: 2"),
    _features("downgrade --feature F --dry-run", "transaction.version=1", shows="can be downgraded to 1"),
    _features("downgrade --feature F", "transaction.version=1", shows="was downgraded to 1"),
    _features("upgrade --feature F --dry-run", "transaction.version=2", shows="can be upgraded to 2"),
    _features("upgrade --feature F", "transaction.version=2", shows="was upgraded to 2"),
    _features("downgrade --feature F --unsafe", "group.version=0", shows="was downgraded to 0"),
    _features(
        "upgrade --feature F --feature F", "group.version=1|transaction.version=2", shows="was upgraded"
    ),
    _features(
        "upgrade --feature F",
        f"{METADATA_FORMAT}={FORMAT_VERSION}",
        shows=f"{METADATA_FORMAT} was upgraded to {FORMAT_VERSION}",
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
        "upgrade --release-version V --dry-run", "4.4", shows=r"metadata\.version can be upgraded to 33"
    ),
    _features("upgrade --release-version V", "4.4", shows=r"share\.version was upgraded to 2"),
    _features("version-mapping --release-version V", "4.4", shows=r"metadata\.version=33 \(4\.4"),
    _features("downgrade --metadata V", "4.3-IV0", shows="was downgraded to 30"),
    _features("upgrade --metadata V", "4.4-IV2", shows="was upgraded to 33"),
    _features(
        "downgrade --release-version V",
        "4.2",
        shows="only supports versions 30-33",
        status=1,
        refused="the oldest `metadata.version` is that of 4.3",
    ),
    _features("version-mapping", shows=r"metadata\.version=33"),
    _features("feature-dependencies --feature F", "transaction.version=2", shows="has no dependencies"),
    tool_case("kafka-metadata-quorum.sh", "describe --status", shows=r"LeaderId:\s+1"),
    tool_case("kafka-metadata-quorum.sh", "describe --replication", shows="Leader"),
    tool_case("kafka-metadata-quorum.sh", "describe --replication --human-readable", shows="Leader"),
    tool_case(
        "kafka-metadata-quorum.sh",
        "remove-controller --controller-id C --controller-directory-id D",
        "1|AAAAAAAAAAAAAAAAAAAAAQ",
        shows="it has no quorum whose voters could be changed",
        status=1,
        refused="without a metadata quorum there are no voters",
    ),
    tool_case("kafka-client-metrics.sh", "--list", shows=r"\A\s*\Z"),
    tool_case("kafka-client-metrics.sh", "--describe --name M", "m", shows="m"),
    tool_case(
        "kafka-client-metrics.sh",
        "--alter --name M --interval MS",
        "m|1000",
        shows="Client metrics are not collected",
        status=1,
        refused="clients' metrics are not collected",
    ),
)

SECURITY = (
    tool_case(
        "kafka-acls.sh",
        "--add --allow-principal P --operation O --topic T",
        "User:a|Read|tools",
        shows="Adding ACLs for resource",
    ),
    tool_case(
        "kafka-acls.sh",
        "--add --deny-principal P --deny-host H --operation O --topic T --resource-pattern-type R",
        "User:a|10.0.0.1|Write|tools-|prefixed",
        shows="Adding ACLs for resource",
    ),
    tool_case(
        "kafka-acls.sh",
        "--add --allow-principal P --producer --consumer --topic T --group G",
        "User:a|tools|tools",
        shows="Adding ACLs for resource",
    ),
    tool_case("kafka-acls.sh", "--list", shows="principal=User:a"),
    tool_case("kafka-acls.sh", "--list --principal P", "User:a", shows="ACLs for principal"),
    tool_case(
        "kafka-acls.sh",
        "--remove --force --allow-principal P --operation O --topic T",
        "User:a|Read|tools",
        shows="",
    ),
    tool_case(
        "kafka-delegation-tokens.sh",
        "--create --max-life-time-period N --command-config F",
        "-1|{folder}/client.properties",
        shows="not allowed on PLAINTEXT",
        status=1,
        refused="tokens need a listener with authentication, on which all actions work",
    ),
)

TRANSACTIONS = (
    tool_case("kafka-transactions.sh", "list", shows=r"perf\s+1\s+\d+\s+CompleteCommit"),
    tool_case("kafka-transactions.sh", "list --duration-filter MS", "3600000", shows="TransactionalId"),
    tool_case("kafka-transactions.sh", "list --transactional-id-pattern R", "per.", shows="perf"),
    tool_case("kafka-transactions.sh", "describe --transactional-id X", "perf", shows="CompleteCommit"),
    tool_case(
        "kafka-transactions.sh", "describe-producers --topic T --partition P", "tools|0", shows="ProducerId"
    ),
    tool_case(
        "kafka-transactions.sh",
        "find-hanging --topic T --max-transaction-timeout M",
        "tools|1",
        shows=r"tools\s+0\s+\d+",
    ),
    tool_case(
        "kafka-transactions.sh",
        "find-hanging --broker-id B --max-transaction-timeout M",
        "1|1",
        shows=r"tools\s+0\s+\d+",
    ),
    tool_case(
        "kafka-transactions.sh",
        "abort --topic T --partition P --start-offset N",
        "tools|0|{hanging}",
        shows=r"\A\s*\Z",
    ),
    tool_case(
        "kafka-transactions.sh",
        "abort --topic T --partition P --producer-id I --producer-epoch E --coordinator-epoch C",
        "tools|1|{hanging_producer}|0|0",
        shows=r"\A\s*\Z",
    ),
    tool_case(
        "kafka-transactions.sh",
        "find-hanging --broker-id B",
        "1",
        shows=r"(?m)^Topic\s+Partition.*\n?\s*\Z",
    ),
    tool_case(
        "kafka-transactions.sh",
        "forceTerminateTransaction --transactionalId X",
        "perf",
        shows="",
    ),
)

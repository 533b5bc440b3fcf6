"""What a check of ACLs costs: the smallest requests without an authorizer, and with more and more ACLs.

Nine of ten ACLs are of other users on topics of their names, the tenth on prefixes. With
`allow.everyone.if.no.acl.found` the client may also do what is asked when there is no ACL at all.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial

from tests.support.wire.wire_peer import WirePeer, make

from nilometer.cluster.acl import Acl, Operation, PatternType, Permission, ResourceType
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.messages import api, encode_request

from . import client_rows, plays
from .rows import CLIENT, P50, P99, Column, Load, Numbers, Row
from .systems import System, delete_topic

CONNECTIONS = 10
COUNTS = (0, 100, 10_000)
QUICK_MAX = 300
AT_ONCE = 500
"""ACLs in one request."""
USERS = 50
KNOWN_TIMEOUT_S = 30.0
CREATE_VERSION, METADATA_VERSION = 3, 1
SETTINGS = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "allow.everyone.if.no.acl.found": "true",
}
_EVERYONE = "User:ANONYMOUS"
_OWN_TOPICS = ("connected", "described")
"""What the names of the rows' topics begin with."""


def acls(count: int) -> list[Acl]:
    """So many; the first are those by which the client is allowed what it asks for."""
    found = [
        Acl(ResourceType.TOPIC, name, PatternType.PREFIXED, _EVERYONE, "*", Operation.ALL, Permission.ALLOW)
        for name in _OWN_TOPICS
    ]
    for number in range(count - len(found)):
        kind = PatternType.PREFIXED if number % 10 == 9 else PatternType.LITERAL
        user = f"User:user-{number % USERS}"
        found.append(
            Acl(
                ResourceType.TOPIC,
                f"topic-of-{number}",
                kind,
                user,
                "*",
                Operation.READ if number % 2 else Operation.WRITE,
                Permission.ALLOW,
            )
        )
    return found[:count]


def _create(system: System, wanted: Iterable[Acl]) -> None:
    """Raises RuntimeError if one is not accepted. Those that exist already stay."""
    left = list(wanted)
    with WirePeer(system.bootstrap, timeout_s=60.0) as peer:
        while left:
            part, left = left[:AT_ONCE], left[AT_ONCE:]
            creations = tuple(_creation(acl) for acl in part)
            answer = peer.ask(ApiKey.CREATE_ACLS, CREATE_VERSION, creations=creations)
            errors = {each.error_code for each in answer.results} - {ErrorCode.none}
            if errors:
                raise RuntimeError(f"{system.name} does not take ACLs: {errors}")


def _creation(acl: Acl) -> object:
    return make(
        ApiKey.CREATE_ACLS,
        CREATE_VERSION,
        "AclCreation",
        resource_type=acl.resource_type,
        resource_name=acl.resource_name,
        resource_pattern_type=acl.pattern_type,
        principal=acl.principal,
        host=acl.host,
        operation=acl.operation,
        permission_type=acl.permission,
    )


def _play(system: System, seconds: float) -> Numbers:
    """One half of the time small batches, the other half Metadata of one topic."""
    produced = client_rows.small_batches(system, seconds / 2, connections=CONNECTIONS)
    topic = plays.fresh_topic(system, "described", 1, 1)
    frame, error_at = _metadata(system, topic)
    described = client_rows.ask(system, seconds / 2, [frame], error_at, CONNECTIONS)
    delete_topic(system, topic)
    of_metadata = ("requests_per_s", "p50_ms", "p99_ms", "cpu_us_per_request")
    return {**produced, **{f"metadata_{key}": described[key] for key in of_metadata}}


def _metadata(system: System, topic: str) -> tuple[bytes, int]:
    """The request, and where its response has the topic's error code: behind the brokers.

    Returns when the broker knows the topic: Kafka answers CreateTopics before. Raises RuntimeError.
    """
    fields = {"topics": (make(ApiKey.METADATA, METADATA_VERSION, "MetadataRequestTopic", name=topic),)}
    with WirePeer(system.bootstrap) as peer:
        deadline = time.monotonic() + KNOWN_TIMEOUT_S
        while True:
            answer = peer.ask(ApiKey.METADATA, METADATA_VERSION, **fields)
            error = answer.topics[0].error_code
            if error is ErrorCode.none:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"{system.name} does not know {topic}: {error.name}")
            time.sleep(0.02)
    rows = [2 + len(each.host) + 2 + len(each.rack or "") for each in answer.brokers]
    error_at = 4 + 4 + sum(4 + 4 + size for size in rows) + 4 + 4
    request = api(ApiKey.METADATA, METADATA_VERSION).request(**fields)
    return encode_request(1, "bench", request), error_at


_COLUMNS = (
    Column("requests_per_s", "Produce requests/s", "requests/s", more_is_better=True, digits=0),
    P50,
    P99,
    Column("cpu_us_per_request", "broker CPU per Produce", "µs", more_is_better=False),
    Column("metadata_requests_per_s", "Metadata requests/s", "requests/s", more_is_better=True, digits=0),
    Column("metadata_p50_ms", "p50 of Metadata", "ms", more_is_better=False, digits=2),
    Column("metadata_p99_ms", "p99 of Metadata", "ms", more_is_better=False, digits=2),
    Column("metadata_cpu_us_per_request", "broker CPU per Metadata", "µs", more_is_better=False),
    *CLIENT,
)
_WHAT = (
    f"{CONNECTIONS} connections: batches of {client_rows.SMALL_BATCH} records of {client_rows.SIZE} B, "
    "then Metadata of one topic"
)


def _row(count: int) -> Row:
    return Row(
        f"acls-{count}",
        f"{_WHAT}; {count:,} ACLs",
        _COLUMNS,
        _load(count),
        quick_load=_load(min(count, QUICK_MAX)),
        settings=SETTINGS,
    )


def _load(count: int) -> Load:
    return Load(_play, "requests_per_s", prepare=partial(_create, wanted=acls(count)))


ACL_ROWS: tuple[Row, ...] = (
    Row("acls-none", f"{_WHAT}; no authorizer", _COLUMNS, Load(_play, "requests_per_s")),
    *(_row(count) for count in COUNTS),
)

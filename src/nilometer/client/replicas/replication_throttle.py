"""The replication throttle of a reassignment (KIP-73): set before partitions move, removed afterwards.

Topic configurations name the throttled replicas: as leaders the replicas before the move, as followers the
added ones. Broker configurations hold the rates. All are changed by requests to the controller, so they can
also be changed for a broker that is down.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from nilometer.client.admin.admin import Admin
from nilometer.client.admin.descriptions import AlterOperation, ConfigChange, ResourceType
from nilometer.client.network.cluster_metadata import TopicPartition
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message

LEADER_REPLICAS = "leader.replication.throttled.replicas"
FOLLOWER_REPLICAS = "follower.replication.throttled.replicas"
LEADER_RATE = "leader.replication.throttled.rate"
FOLLOWER_RATE = "follower.replication.throttled.rate"

ALTER_TIMEOUT_MS = 60_000

Replicas = Mapping[TopicPartition, Sequence[int]]
_Resource = tuple[ResourceType, str]


async def throttle(admin: Admin, before: Replicas, after: Replicas, bytes_per_second: int) -> None:
    """Throttle the moves from replicas ``before`` to ``after``. Raises KafkaError: do not start them then."""
    changes: dict[_Resource, list[ConfigChange]] = {}
    for topic in sorted({key.topic for key in after}):
        keys = sorted(key for key in after if key.topic == topic)
        changes[ResourceType.TOPIC, topic] = [
            ConfigChange(LEADER_REPLICAS, _named((key, before[key]) for key in keys)),
            ConfigChange(
                FOLLOWER_REPLICAS,
                _named((key, [one for one in after[key] if one not in before[key]]) for key in keys),
            ),
        ]
    for broker in sorted({one for key in after for one in (*before[key], *after[key])}):
        changes[ResourceType.BROKER, str(broker)] = [
            ConfigChange(name, str(bytes_per_second)) for name in (LEADER_RATE, FOLLOWER_RATE)
        ]
    await _alter(admin, changes)


async def unthrottle(admin: Admin, topics: Sequence[str], broker_ids: Sequence[int]) -> bool:
    """Remove the throttle of these topics and brokers; return whether a topic had one. Raises KafkaError."""
    throttled = [topic for topic in topics if await _is_throttled(admin, topic)]
    if not throttled:
        return False
    changes = {
        (ResourceType.TOPIC, topic): [_deleted(LEADER_REPLICAS), _deleted(FOLLOWER_REPLICAS)]
        for topic in throttled
    }
    for broker in broker_ids:
        changes[ResourceType.BROKER, str(broker)] = [_deleted(LEADER_RATE), _deleted(FOLLOWER_RATE)]
    await _alter(admin, changes)
    return True


async def _is_throttled(admin: Admin, topic: str) -> bool:
    def make(api: Api) -> Message:
        resource = api.make_request(
            "DescribeConfigsResource",
            resource_type=ResourceType.TOPIC,
            resource_name=topic,
            configuration_keys=(LEADER_REPLICAS, FOLLOWER_REPLICAS),
        )
        return api.request(resources=(resource,))

    async def ask() -> bool:
        response = await admin.client.send_to_controller(ApiKey.DESCRIBE_CONFIGS, make)
        (result,) = response.results
        if result.error_code != ErrorCode.none:
            raise KafkaError(result.error_code, f"topic {topic}: {result.error_message or ''}")
        return any(entry.value for entry in result.configs)

    return await admin.client.retry(ask, ALTER_TIMEOUT_MS)


async def _alter(admin: Admin, changes: Mapping[_Resource, Sequence[ConfigChange]]) -> None:
    def make(api: Api) -> Message:
        resources = tuple(
            api.make_request(
                "AlterConfigsResource",
                resource_type=kind,
                resource_name=name,
                configs=tuple(
                    api.make_request(
                        "AlterableConfig",
                        name=change.name,
                        config_operation=change.operation,
                        value=change.value,
                    )
                    for change in altered
                ),
            )
            for (kind, name), altered in changes.items()
        )
        return api.request(resources=resources, validate_only=False)

    async def ask() -> None:
        response = await admin.client.send_to_controller(ApiKey.INCREMENTAL_ALTER_CONFIGS, make)
        for result in response.responses:
            if result.error_code != ErrorCode.none:
                subject = f"{ResourceType(result.resource_type).name.lower()} {result.resource_name}"
                raise KafkaError(result.error_code, f"{subject}: {result.error_message or ''}")

    await admin.client.retry(ask, ALTER_TIMEOUT_MS)


def _named(replicas: Iterable[tuple[TopicPartition, Sequence[int]]]) -> str:
    return ",".join(f"{key.partition}:{broker}" for key, brokers in replicas for broker in brokers)


def _deleted(name: str) -> ConfigChange:
    return ConfigChange(name, None, AlterOperation.DELETE)

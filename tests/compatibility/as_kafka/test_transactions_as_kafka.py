"""The transaction coordinator's answers as Apache Kafka gives them, request by request.

Producer ids are each broker's own: they are named by the order in which they were met.
`support.brokers.comparison` says how the two are compared.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode
from nilometer.wire.records import BatchBuilder
from support.brokers.comparison import each_version
from support.brokers.comparison import same as same_answers
from support.brokers.nilometer_broker import NilometerBroker
from support.brokers.two_brokers import Plain, Side, produce_fields
from support.eventually import eventually
from support.wire.wire_peer import make

pytestmark = pytest.mark.recorded

WAIT_S = 60.0
CONCURRENT = ErrorCode.concurrent_transactions
TRY_AGAIN = (
    ErrorCode.not_enough_replicas,
    ErrorCode.not_leader_or_follower,
    ErrorCode.unknown_topic_or_partition,
)
NOT_YET = (
    ErrorCode.coordinator_not_available,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.not_coordinator,
)


class Talk:
    """One transactional id on one of the two brokers."""

    def __init__(self, side: Side, name: str) -> None:
        self.side = side
        self.name = name
        self.ids: list[int] = []
        self.producer_id, self.epoch = -1, -1

        def is_found() -> bool:
            found = side.message(ApiKey.FIND_COORDINATOR, 4, key_type=1, coordinator_keys=(name,))
            return found.coordinators[0].error_code is ErrorCode.none

        eventually(is_found, f"{side.name} has a coordinator of {name}", WAIT_S)

    def alias(self, producer_id: int) -> int:
        if producer_id >= 0 and producer_id not in self.ids:
            self.ids.append(producer_id)
        return self.ids.index(producer_id) if producer_id >= 0 else -1

    def settled(self, ask: Callable[[], ErrorCode]) -> ErrorCode:
        """The answer when markers are written, and the coordinator is loaded."""
        last: list[ErrorCode] = []

        def is_settled() -> bool:
            last[:] = [ask()]
            return last[0] not in (CONCURRENT, *NOT_YET)

        eventually(is_settled, f"{self.side.name} has ended the transaction of {self.name}", WAIT_S)
        return last[0]

    def init(
        self, *, version: int = 4, has: tuple[int, int] | None = None, timeout_ms: int = 60_000
    ) -> tuple[str, int, int]:
        told: list[tuple[str, int, int]] = []
        producer_id, epoch = has or (-1, -1)
        named = {"producer_id": producer_id, "producer_epoch": epoch} if version >= 3 else {}

        def ask() -> ErrorCode:
            answer = self.side.message(
                ApiKey.INIT_PRODUCER_ID,
                version,
                transactional_id=self.name,
                transaction_timeout_ms=timeout_ms,
                **named,
            )
            told[:] = [(answer.error_code.name, self.alias(answer.producer_id), answer.producer_epoch)]
            if answer.error_code is ErrorCode.none:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            return answer.error_code

        self.settled(ask)
        return told[0]

    def add(
        self,
        topic: str,
        *partitions: int,
        version: int = 3,
        epoch: int | None = None,
        name: str | None = None,
    ) -> Plain:
        told: list[Plain] = []

        def ask() -> ErrorCode:
            asked = make(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version,
                "AddPartitionsToTxnTopic",
                name=topic,
                partitions=partitions,
            )
            answer = self.side.message(
                ApiKey.ADD_PARTITIONS_TO_TXN,
                version,
                v3_and_below_transactional_id=self.name if name is None else name,
                v3_and_below_producer_id=self.producer_id,
                v3_and_below_producer_epoch=self.epoch if epoch is None else epoch,
                v3_and_below_topics=(asked,),
            )
            errors = [
                (result.partition_index, result.partition_error_code)
                for found in answer.results_by_topic_v3_and_below
                for result in found.results_by_partition
            ]
            told[:] = [sorted((index, error.name) for index, error in errors)]
            return errors[0][1]

        self.settled(ask)
        return told[0]

    def verify(self, topic: str, *partitions: int, epoch: int | None = None) -> Plain:
        asked = make(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            5,
            "AddPartitionsToTxnTransaction",
            transactional_id=self.name,
            producer_id=self.producer_id,
            producer_epoch=self.epoch if epoch is None else epoch,
            verify_only=True,
            topics=(
                make(
                    ApiKey.ADD_PARTITIONS_TO_TXN,
                    5,
                    "AddPartitionsToTxnTopic",
                    name=topic,
                    partitions=partitions,
                ),
            ),
        )
        answer = self.side.message(ApiKey.ADD_PARTITIONS_TO_TXN, 5, transactions=(asked,))
        (transaction,) = answer.results_by_transaction
        return sorted(
            (result.partition_index, result.partition_error_code.name)
            for found in transaction.topic_results
            for result in found.results_by_partition
        )

    def end(self, *, commit: bool = True, version: int = 4, has: tuple[int, int] | None = None) -> Plain:
        told: list[Plain] = []
        producer_id, epoch = has or (self.producer_id, self.epoch)

        def ask() -> ErrorCode:
            answer = self.side.message(
                ApiKey.END_TXN,
                version,
                transactional_id=self.name,
                producer_id=producer_id,
                producer_epoch=epoch,
                committed=commit,
            )
            error = answer.error_code
            if version < 5:
                told[:] = [error.name]
                return error
            told[:] = [(error.name, self.alias(answer.producer_id), answer.producer_epoch)]
            if error is ErrorCode.none:
                self.producer_id, self.epoch = answer.producer_id, answer.producer_epoch
            return error

        self.settled(ask)
        return told[0]

    @property
    def has(self) -> tuple[int, int]:
        return self.producer_id, self.epoch


def same(sides: tuple[Side, Side], name: str, scenario: Callable[[Talk], Plain]) -> None:
    same_answers(sides, lambda side: scenario(Talk(side, name)))


@pytest.mark.parametrize("version", range(6))
def test_init_producer_id(sides: tuple[Side, Side], version: int) -> None:
    def scenario(talk: Talk) -> Plain:
        told = [talk.init(version=version), talk.init(version=version)]
        told += [talk.init(version=version, timeout_ms=bad) for bad in (0, 900_001)]
        if version >= 3:
            first = talk.has
            told += [talk.init(version=version, has=first), talk.init(version=version, has=first)]
            told += [talk.init(version=version, has=(first[0], 0)), talk.init(version=version, has=(7, 1))]
        return told

    same(sides, f"init-{version}", scenario)


@pytest.mark.parametrize("version", range(4))
def test_add_partitions(sides: tuple[Side, Side], version: int) -> None:
    def scenario(talk: Talk) -> Plain:
        topic = talk.side.create(f"added-{version}", 2)
        talk.init()
        talk.init()
        return [
            talk.add(topic, 0, version=version),
            talk.add(topic, 0, 1, version=version),
            talk.add(topic, 0, 9, version=version),
            talk.add("nowhere", 0, version=version),
            talk.add(topic, 0, version=version, epoch=0),
            talk.add(topic, 0, version=version, epoch=2),
            talk.add(topic, 0, version=version, name="no-such-id"),
            talk.end(version=version),
            talk.add(topic, 1, version=version),
        ]

    same(sides, f"add-{version}", scenario)


@pytest.mark.parametrize("version", range(5))
def test_ends_without_an_epoch_bump(sides: tuple[Side, Side], version: int) -> None:
    def scenario(talk: Talk) -> Plain:
        topic = talk.side.create(f"ended-{version}")
        talk.init()
        told = [talk.end(commit=commit, version=version) for commit in (True, False)]
        for commit in (True, False):
            talk.add(topic, 0)
            told += [talk.end(commit=commit, version=version) for _ in range(2)]
            told.append(talk.end(commit=not commit, version=version))
        old = talk.has
        talk.init()
        return [*told, talk.end(version=version, has=old), talk.end(version=version, has=(old[0] + 9, 0))]

    same(sides, f"end-{version}", scenario)


def test_ends_with_an_epoch_bump(sides: tuple[Side, Side]) -> None:
    def scenario(talk: Talk) -> Plain:
        topic = talk.side.create("ended-5")
        told: list[Plain] = [talk.init(), talk.end(version=5), talk.end(commit=False, version=5)]
        for commit in (True, False):
            talk.add(topic, 0)
            before = talk.has
            told += [talk.end(commit=commit, version=5), talk.end(commit=commit, version=5, has=before)]
            told.append(talk.end(commit=not commit, version=5, has=before))
            talk.add(topic, 0)
            told.append(talk.end(commit=commit, version=5, has=before))
            told.append(talk.end(commit=True, version=5))
        return told

    same(sides, "end-5", scenario)


def test_verification(sides: tuple[Side, Side]) -> None:
    def scenario(talk: Talk) -> Plain:
        topic = talk.side.create("verified", 2)
        talk.init()
        told = [talk.verify(topic, 0, 1)]
        talk.add(topic, 0)
        told += [talk.verify(topic, 0, 1), talk.verify(topic, 0, epoch=7), talk.verify("nowhere", 0)]
        talk.end()
        talk.add(topic, 1)
        return [*told, talk.verify(topic, 0, 1)]

    same(sides, "verified", scenario)


def test_a_listing_of_transactions(sides: tuple[Side, Side]) -> None:
    def scenario(talk: Talk) -> Plain:
        topic = talk.side.create("listed")
        talk.init()
        talk.add(topic, 0)

        def listed(**filters: object) -> Plain:
            answer = talk.side.message(ApiKey.LIST_TRANSACTIONS, 2, **filters)
            names = [
                (each.transactional_id, each.transaction_state)
                for each in answer.transaction_states
                if each.transactional_id == talk.name
            ]
            return [answer.error_code.name, sorted(answer.unknown_state_filters), names]

        return [
            listed(transactional_id_pattern="list.*"),
            listed(transactional_id_pattern="list"),
            listed(transactional_id_pattern="("),
            listed(state_filters=("Ongoing", "Sleeping")),
            listed(state_filters=("Empty",)),
            listed(duration_filter=3_600_000, transactional_id_pattern="listed-id"),
            listed(producer_id_filters=(talk.producer_id,)),
            listed(producer_id_filters=(talk.producer_id + 99_999,)),
        ]

    same(sides, "listed-id", scenario)


@pytest.mark.java
@each_version(ApiKey.LIST_TRANSACTIONS)
def test_filters_are_checked_where_no_transaction_is_coordinated(
    kafka: Side, tmp_path: Path, version: int
) -> None:
    def scenario(side: Side, version: int) -> Plain:
        def listed(*states: str, **more: object) -> Plain:
            answer = side.ask(ApiKey.LIST_TRANSACTIONS, version, state_filters=states, **more)
            return answer["error_code"], answer["unknown_state_filters"]

        told = {"unknown": listed("Ongoing", "Sleeping", "", "Sleeping"), "known": listed("Empty")}
        if version >= 2:
            told["no pattern"] = listed("Sleeping", transactional_id_pattern="(")
        return told

    with NilometerBroker(tmp_path / "data") as broker:
        alone = Side("Nilometer", broker.bootstrap)
        same_answers((kafka, alone), scenario, version)
        alone.hang_up()


@pytest.mark.parametrize("version", [9, 11])
def test_edge_38_a_batch_is_taken_only_while_its_partition_is_part_of_the_transaction(
    sides: tuple[Side, Side], version: int
) -> None:
    def scenario(talk: Talk) -> Plain:
        topic = talk.side.create(f"produced-{version}")
        talk.init()
        told = [_produce(talk, topic, version, 0)]
        talk.add(topic, 0)
        told += [_produce(talk, topic, version, 0), _produce(talk, topic, version, 1)]
        talk.end()
        talk.settled(lambda: ErrorCode[talk.end()])
        told.append(_produce(talk, topic, version, 2))
        talk.add(topic, 0)
        return [*told, _produce(talk, topic, version, 2), talk.end()]

    same(sides, f"produced-{version}", scenario)


def _produce(talk: Talk, topic: str, version: int, sequence: int) -> str:
    builder = BatchBuilder()
    builder.append(1_000, None, b"v")
    records = builder.build(0, talk.producer_id, talk.epoch, sequence, transactional=True)
    told: list[ErrorCode] = []

    def ask() -> ErrorCode:
        """Older versions are told NOT_ENOUGH_REPLICAS for what they are to try again. The leader of a new
        topic may not know its role yet."""
        fields = produce_fields(version, topic, {0: records}, -1, talk.name)
        answer = talk.side.message(ApiKey.PRODUCE, version, **fields)
        told[:] = [answer.responses[0].partition_responses[0].error_code]
        return CONCURRENT if told[0] in TRY_AGAIN else told[0]

    talk.settled(ask)
    return told[0].name

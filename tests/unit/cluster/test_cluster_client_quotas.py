"""Quotas of clients in the metadata: decided for each entity, folded, kept in snapshots, selected."""

from __future__ import annotations

import math
from collections.abc import Mapping

import pytest

from nilometer.cluster.client_quotas import (
    MATCH_DEFAULT,
    MATCH_EXACT,
    MATCH_SPECIFIED,
    FilterComponent,
    QuotaFilter,
)
from nilometer.cluster.controller.access import QuotaAlteration, decide_alter_client_quotas
from nilometer.cluster.entries import decode_entry, decode_snapshot, encode_entry, encode_snapshot, entries_of
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import QUOTAS_FORMAT_VERSION, ClientQuotaChanged, Record, TopicDeleted
from nilometer.identifiers import EntryNumber, TopicId
from nilometer.invariants import InvariantBroken
from nilometer.quotas import (
    CLIENT_ID,
    CONNECTION_CREATION_RATE,
    CONTROLLER_MUTATION_RATE,
    IP,
    PRODUCER_BYTE_RATE,
    REQUEST_PERCENTAGE,
    USER,
    Limit,
    QuotaEntity,
    entity_of,
)
from nilometer.wire.errors import ErrorCode, KafkaError

ALICE = entity_of({USER: "alice"})
ALICE_APP = entity_of({USER: "alice", CLIENT_ID: "app"})
ANYONE = entity_of({USER: None})
ADDRESS = entity_of({IP: "127.0.0.1"})
Changes = Mapping[str, float | None]
HALF = {PRODUCER_BYTE_RATE: 500.0}


def apply(image: ClusterImage, *records: Record) -> None:
    for entry in entries_of((records,), image.controllership):
        image.apply_entry(EntryNumber(image.number + 1), decode_entry(encode_entry(entry)))


def alter(image: ClusterImage, entity: QuotaEntity, changes: Changes) -> tuple[Record, ...]:
    decision = decide_alter_client_quotas(image, [QuotaAlteration(entity, list(changes.items()))])
    assert decision.reply[entity].ok, decision.reply
    apply(image, *decision.records)
    return tuple(decision.records)


def refusal(image: ClusterImage, entity: QuotaEntity, changes: Changes) -> str:
    decision = decide_alter_client_quotas(image, [QuotaAlteration(entity, list(changes.items()))])
    assert not decision
    assert decision.reply[entity].error is ErrorCode.invalid_request
    return decision.reply[entity].message or ""


def test_quotas_are_set_replaced_and_removed() -> None:
    image = ClusterImage()
    alter(image, ALICE, HALF)
    alter(image, ALICE, {PRODUCER_BYTE_RATE: 700.0, REQUEST_PERCENTAGE: 12.5})
    alter(image, ANYONE, {CONTROLLER_MUTATION_RATE: 0.5})
    assert image.client_quotas.of(ALICE) == {PRODUCER_BYTE_RATE: 700, REQUEST_PERCENTAGE: 12.5}
    assert image.client_quotas.limits(PRODUCER_BYTE_RATE).of_client("alice", "x") == Limit(("alice", ""), 700)
    assert alter(image, ALICE, {PRODUCER_BYTE_RATE: 700.0}) == ()
    assert alter(image, ALICE, {CONTROLLER_MUTATION_RATE: None}) == ()
    alter(image, ALICE, {PRODUCER_BYTE_RATE: None, REQUEST_PERCENTAGE: None})
    assert [entity for entity, _ in image.client_quotas.items()] == [ANYONE]
    assert not image.client_quotas.limits(PRODUCER_BYTE_RATE)


@pytest.mark.parametrize(
    ("entity", "changes", "why"),
    [
        ((), HALF, "empty client quota entity"),
        (entity_of({"planet": "mars"}), HALF, "Unhandled client quota entity type: planet"),
        (entity_of({USER: ""}), HALF, "Empty user not supported"),
        (entity_of({USER: "a", IP: "127.0.0.1"}), HALF, "should not be combined"),
        (entity_of({IP: "nowhere"}), {}, "nowhere is not a valid IP"),
        (ADDRESS, HALF, "Invalid configuration key producer_byte_rate"),
        (ALICE, {CONNECTION_CREATION_RATE: 1.0}, "Invalid configuration key connection_creation_rate"),
        (ALICE, {PRODUCER_BYTE_RATE: 0.0}, "must be greater than 0"),
        (ALICE, {PRODUCER_BYTE_RATE: -1.0}, "must be greater than 0"),
        (ALICE, {PRODUCER_BYTE_RATE: 1.5}, "cannot be a fractional value"),
        (ALICE, {PRODUCER_BYTE_RATE: 1e19}, "too large for a LONG"),
        (ADDRESS, {CONNECTION_CREATION_RATE: 2.0**31}, "too large for an INT"),
        (ALICE, {REQUEST_PERCENTAGE: math.nan}, "must be a number"),
        (ALICE, {REQUEST_PERCENTAGE: math.inf}, "must be a number"),
        (ALICE, {"speed": 1.0, **HALF}, "Invalid configuration key speed"),
    ],
)
def test_invalid_quotas_are_refused(entity: QuotaEntity, changes: Mapping[str, float], why: str) -> None:
    assert why in refusal(ClusterImage(), entity, changes)


def test_an_unknown_key_can_be_removed_to_no_effect() -> None:
    assert alter(ClusterImage(), ALICE, {"speed": None}) == ()


def test_one_entitys_error_does_not_concern_others() -> None:
    image = ClusterImage()
    alterations = [
        QuotaAlteration(ALICE, [(PRODUCER_BYTE_RATE, 1.0), (PRODUCER_BYTE_RATE, 2.0)]),
        QuotaAlteration(ANYONE, [(PRODUCER_BYTE_RATE, 3.0)]),
        QuotaAlteration(ALICE_APP, [(PRODUCER_BYTE_RATE, 4.0)]),
        QuotaAlteration(ALICE_APP, [(PRODUCER_BYTE_RATE, 5.0)]),
    ]
    decision = decide_alter_client_quotas(image, alterations)
    assert {entity: outcome.error for entity, outcome in decision.reply.items()} == {
        ALICE: ErrorCode.invalid_request,
        ANYONE: ErrorCode.none,
        ALICE_APP: ErrorCode.invalid_request,
    }
    apply(image, *decision.records)
    assert dict(image.client_quotas.items()) == {
        ALICE_APP: {PRODUCER_BYTE_RATE: 4},  # the first of them, as in Kafka
        ANYONE: {PRODUCER_BYTE_RATE: 3},
    }
    assert not decide_alter_client_quotas(image, alterations[:2], validate_only=True)


def test_a_snapshot_has_the_quotas_in_their_format() -> None:
    image = ClusterImage()
    assert image.snapshot().version < QUOTAS_FORMAT_VERSION
    for entity, changes in ((ALICE_APP, HALF), (ANYONE, HALF), (ADDRESS, {CONNECTION_CREATION_RATE: 9.0})):
        alter(image, entity, changes)
    snapshot = decode_snapshot(encode_snapshot(image.snapshot()))
    assert snapshot.version == QUOTAS_FORMAT_VERSION
    assert ClusterImage.from_snapshot(snapshot) == image
    assert ClusterImage.from_snapshot(snapshot).client_quotas.of(ALICE_APP) == HALF
    changed = ClientQuotaChanged(entity=ANYONE, key=PRODUCER_BYTE_RATE)
    (entry,) = entries_of(((changed,),), image.controllership)
    assert entry.version == QUOTAS_FORMAT_VERSION


def test_an_entry_that_cannot_be_folded_leaves_the_quotas() -> None:
    image = ClusterImage()
    alter(image, ALICE, HALF)
    before = image.snapshot()
    removed = ClientQuotaChanged(entity=ALICE, key=PRODUCER_BYTE_RATE)
    added = ClientQuotaChanged(entity=ANYONE, key=PRODUCER_BYTE_RATE, value=1.0)
    unit = (removed, added, TopicDeleted(topic_id=TopicId("none")))
    (bad,) = entries_of((unit,), image.controllership)
    with pytest.raises(InvariantBroken):
        image.apply_entry(EntryNumber(image.number + 1), bad)
    assert image.snapshot() == before


ENTITIES = (ALICE, ALICE_APP, ANYONE, ADDRESS, entity_of({CLIENT_ID: "app"}))


@pytest.mark.parametrize(
    ("components", "strict", "found"),
    [
        ((), False, set(ENTITIES)),
        ((), True, set()),
        ((FilterComponent(USER, MATCH_EXACT, "alice"),), False, {ALICE, ALICE_APP}),
        ((FilterComponent(USER, MATCH_EXACT, "alice"),), True, {ALICE}),
        ((FilterComponent(USER, MATCH_DEFAULT, None),), False, {ANYONE}),
        ((FilterComponent(USER, MATCH_SPECIFIED, None),), True, {ALICE, ANYONE}),
        (
            (FilterComponent(USER, MATCH_SPECIFIED, None), FilterComponent(CLIENT_ID, MATCH_EXACT, "app")),
            True,
            {ALICE_APP},
        ),
        ((FilterComponent(IP, MATCH_SPECIFIED, None),), True, {ADDRESS}),
    ],
)
def test_a_filter_selects_entities(
    components: tuple[FilterComponent, ...], strict: bool, found: set[QuotaEntity]
) -> None:
    wanted = QuotaFilter(components, strict=strict)
    assert {entity for entity in ENTITIES if wanted.matches(entity)} == found


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ((FilterComponent("", MATCH_EXACT, "x"),), ErrorCode.invalid_request),
        ((FilterComponent("planet", MATCH_EXACT, "x"),), ErrorCode.unsupported_version),
        ((FilterComponent(USER, 9, None),), ErrorCode.invalid_request),
        ((FilterComponent(USER, MATCH_EXACT, None),), ErrorCode.invalid_request),
        ((FilterComponent(USER, MATCH_DEFAULT, "x"),), ErrorCode.invalid_request),
        ((FilterComponent(USER, MATCH_SPECIFIED, "x"),), ErrorCode.invalid_request),
        ((FilterComponent(USER, MATCH_EXACT, "x"),) * 2, ErrorCode.invalid_request),
        (
            (FilterComponent(USER, MATCH_EXACT, "x"), FilterComponent(IP, MATCH_DEFAULT, None)),
            ErrorCode.invalid_request,
        ),
    ],
)
def test_invalid_filters_are_refused(components: tuple[FilterComponent, ...], error: ErrorCode) -> None:
    with pytest.raises(KafkaError) as refused:
        QuotaFilter(components, strict=False)
    assert refused.value.code is error

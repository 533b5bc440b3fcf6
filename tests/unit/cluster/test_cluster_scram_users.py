"""SCRAM credentials in the metadata: decided for each user, folded, kept in snapshots."""

from __future__ import annotations

import base64

import pytest

from nilometer.cluster.controller.access import ScramDeletion, ScramUpsertion, decide_alter_scram_credentials
from nilometer.cluster.entries import decode_entry, decode_snapshot, encode_entry, encode_snapshot, entries_of
from nilometer.cluster.history import record_fields, snapshot_fields
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import SCRAM_FORMAT_VERSION, Record, ScramCredentialChanged, TopicDeleted
from nilometer.identifiers import EntryNumber, TopicId
from nilometer.invariants import InvariantBroken
from nilometer.security.scram import ScramMechanism, credential_of
from nilometer.steps import at_once
from nilometer.wire.errors import ErrorCode

SHA_256, SHA_512 = ScramMechanism.SHA_256, ScramMechanism.SHA_512
CREDENTIAL = credential_of(SHA_256, bytes(32), b"salt", 4096)


def upsertion(user: str, mechanism: int = 1, iterations: int = 4096) -> ScramUpsertion:
    return ScramUpsertion(user, mechanism, iterations, b"salt", bytes(32))


def apply(image: ClusterImage, *records: Record) -> None:
    (entry,) = entries_of((records,), image.controllership)
    image.apply_entry(EntryNumber(image.number + 1), decode_entry(encode_entry(entry)))


def test_credentials_are_set_replaced_and_removed() -> None:
    image = ClusterImage()
    for wanted in (upsertion("alice"), upsertion("alice", 2, 8192)):
        decision = at_once(decide_alter_scram_credentials(image, [wanted]))
        assert decision.reply["alice"].ok
        apply(image, *decision.records)
    assert image.scram_users.of("alice")[SHA_256] == CREDENTIAL
    assert image.scram_users.of("alice")[SHA_512].iterations == 8192
    apply(image, *at_once(decide_alter_scram_credentials(image, [ScramDeletion("alice", 1)])).records)
    assert list(image.scram_users.of("alice")) == [SHA_512]
    apply(image, *at_once(decide_alter_scram_credentials(image, [ScramDeletion("alice", 2)])).records)
    assert image.scram_users.names() == []
    assert image == ClusterImage.from_snapshot(image.snapshot())


def test_one_users_error_changes_nothing_of_that_user_and_does_not_concern_others() -> None:
    wanted = [
        upsertion("eve", 2, 1),
        upsertion("alice"),
        upsertion("bob"),
        upsertion("bob", 2),
        upsertion("bob"),
    ]
    decision = at_once(decide_alter_scram_credentials(ClusterImage(), wanted))
    assert list(decision.reply) == ["alice", "bob", "eve"]
    assert decision.reply["alice"].ok
    assert decision.reply["bob"].error is ErrorCode.duplicate_resource
    assert decision.reply["eve"].error is ErrorCode.unacceptable_credential
    changed = [record for record in decision.records if isinstance(record, ScramCredentialChanged)]
    assert [record.user for record in changed] == ["alice"]


@pytest.mark.parametrize(
    ("iterations", "is_taken"), [(4_095, False), (4_096, True), (16_384, True), (16_385, False)]
)
def test_credentials_have_4096_to_16384_iterations(iterations: int, is_taken: bool) -> None:
    decision = at_once(decide_alter_scram_credentials(ClusterImage(), [upsertion("alice", 1, iterations)]))
    assert decision.reply["alice"].ok == is_taken


def test_a_snapshot_has_the_credentials_in_their_format() -> None:
    image = ClusterImage()
    assert image.snapshot().version < SCRAM_FORMAT_VERSION
    apply(image, ScramCredentialChanged(user="alice", mechanism=SHA_256, credential=CREDENTIAL))
    snapshot = decode_snapshot(encode_snapshot(image.snapshot()))
    assert snapshot.version == SCRAM_FORMAT_VERSION
    assert ClusterImage.from_snapshot(snapshot) == image
    assert ClusterImage.from_snapshot(snapshot).scram_users.of("alice") == {SHA_256: CREDENTIAL}


def test_an_entry_that_cannot_be_folded_leaves_the_credentials() -> None:
    image = ClusterImage()
    apply(image, ScramCredentialChanged(user="alice", mechanism=SHA_256, credential=CREDENTIAL))
    before = image.snapshot()
    removed = ScramCredentialChanged(user="alice", mechanism=SHA_256)
    (bad,) = entries_of(((removed, TopicDeleted(topic_id=TopicId("none"))),), image.controllership)
    with pytest.raises(InvariantBroken):
        image.apply_entry(EntryNumber(image.number + 1), bad)
    assert image.snapshot() == before


def test_tools_show_no_salts_and_keys() -> None:
    image = ClusterImage()
    record = ScramCredentialChanged(user="alice", mechanism=SHA_256, credential=CREDENTIAL)
    apply(image, record)
    shown = f"{record_fields(record)} {snapshot_fields(image)}"
    assert shown.count("4096") == 2
    for part in (CREDENTIAL.salt, CREDENTIAL.stored_key, CREDENTIAL.server_key):
        assert base64.b64encode(part).decode() not in shown

"""The proof between brokers: what it binds, and that none of its parts can be exchanged for another."""

from __future__ import annotations

import random

import pytest
from msgspec import structs

from nilometer.cluster.cluster_secret import (
    KEY_BYTES,
    PROOF_BYTES,
    ClusterSecret,
    ClusterSecrets,
    ProofExchange,
    Side,
    UnreadableSecret,
    broker_proof,
    decode_secrets,
    encode_secrets,
    is_proof,
)

SECRET = ClusterSecret(3, b"k" * KEY_BYTES)
EXCHANGE = ProofExchange("cluster", 1, 2, b"i" * 32, b"a" * 32)


@pytest.mark.parametrize("side", list(Side))
def test_a_proof_is_one_for_who_knows_the_secret(side: Side) -> None:
    proof = broker_proof(SECRET, side, EXCHANGE)
    assert len(proof) == PROOF_BYTES
    assert is_proof(SECRET, side, EXCHANGE, proof)


def test_a_reflected_proof_is_none() -> None:
    """An acceptor that gets its own proof back; and one that gets it back in an exchange the other way."""
    proof = broker_proof(SECRET, Side.ACCEPTOR, EXCHANGE)
    assert not is_proof(SECRET, Side.INITIATOR, EXCHANGE, proof)
    turned = ProofExchange("cluster", 2, 1, EXCHANGE.acceptor_nonce, EXCHANGE.initiator_nonce)
    assert not is_proof(SECRET, Side.INITIATOR, turned, proof)
    assert not is_proof(SECRET, Side.ACCEPTOR, turned, proof)


@pytest.mark.parametrize(
    "change",
    [
        {"cluster_id": "another"},
        {"initiator_id": 3},
        {"acceptor_id": 3},
        {"initiator_nonce": b"I" * 32},
        {"acceptor_nonce": b"A" * 32},
        {"initiator_nonce": b"i" * 31, "acceptor_nonce": b"i" + b"a" * 32},
    ],
    ids=" and ".join,
)
@pytest.mark.parametrize("side", list(Side))
def test_a_proof_of_another_exchange_is_none(side: Side, change: dict[str, object]) -> None:
    other = structs.replace(EXCHANGE, **change)  # type: ignore[arg-type]
    assert not is_proof(SECRET, side, EXCHANGE, broker_proof(SECRET, side, other))


@pytest.mark.parametrize("secret", [ClusterSecret(3, b"x" * KEY_BYTES), ClusterSecret(4, SECRET.key)])
def test_a_proof_by_another_secret_is_none(secret: ClusterSecret) -> None:
    assert not is_proof(SECRET, Side.INITIATOR, EXCHANGE, broker_proof(secret, Side.INITIATOR, EXCHANGE))


def test_nothing_that_is_nearly_a_proof_is_one() -> None:
    proof = broker_proof(SECRET, Side.INITIATOR, EXCHANGE)
    chance = random.Random(5)
    for _ in range(300):
        wrong = bytearray(proof)
        wrong[chance.randrange(len(wrong))] ^= 1 << chance.randrange(8)
        assert not is_proof(SECRET, Side.INITIATOR, EXCHANGE, bytes(wrong))
    for short in (b"", proof[:-1], proof + b"\0"):
        assert not is_proof(SECRET, Side.INITIATOR, EXCHANGE, short)


def test_a_rotation_keeps_the_secret_before_and_none_older() -> None:
    first = ClusterSecrets.first(b"0" * KEY_BYTES)
    second = first.rotated(b"1" * KEY_BYTES)
    third = second.rotated(b"2" * KEY_BYTES)
    assert [third.numbered(number) for number in range(4)] == [None, second.current, third.current, None]
    for secrets in (first, second, third):
        assert decode_secrets(encode_secrets(secrets)) == secrets


def test_a_key_is_never_shown() -> None:
    assert "kkk" not in repr(ClusterSecrets(SECRET, SECRET))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"\xff",
        b'{"format":2,"number":0,"current":""}',
        b'{"format":1,"number":0,"current":"c2hvcnQ="}',
        b'{"format":1,"number":-1,"current":"' + b"a2tr" * 10 + b'a2s="}',
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(data: bytes) -> None:
    with pytest.raises(UnreadableSecret) as refused:
        decode_secrets(data)
    assert "c2hvcnQ" not in str(refused.value)

"""Delegation tokens in the metadata: decided as Kafka's controller does, folded, kept in snapshots."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from nilometer.cluster.controller.access import (
    REMOVALS_MAX,
    REQUESTER_BYTES_MAX,
    TIME_MAX_MS,
    TOKEN_BYTES_MAX,
    TokenLifetimes,
    TokenRequest,
    decide_create_token,
    decide_expire_token,
    decide_remove_expired_tokens,
    decide_renew_token,
)
from nilometer.cluster.controller.decision import Decision, Refusal
from nilometer.cluster.entries import decode_entry, decode_snapshot, encode_entry, encode_snapshot, entries_of
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import TOKENS_FORMAT_VERSION, DelegationTokenChanged, Record, TopicDeleted
from nilometer.identifiers import EntryNumber, TopicId
from nilometer.invariants import InvariantBroken
from nilometer.runtime.runtime import SeededEntropy
from nilometer.security.delegation_token import DelegationToken
from nilometer.security.principal import Principal
from nilometer.wire.errors import ErrorCode

NOW = 1_000_000
MAX_MS, RENEWAL_MS = 7_000, 1_000
LIFETIMES = TokenLifetimes(MAX_MS, RENEWAL_MS)
ALICE, BOB, CAROL = (Principal("User", name) for name in ("alice", "bob", "carol"))
CHANCE = SeededEntropy()


def apply(image: ClusterImage, *records: Record) -> None:
    (entry,) = entries_of((records,), image.controllership)
    image.apply_entry(EntryNumber(image.number + 1), decode_entry(encode_entry(entry)))


def create(
    image: ClusterImage,
    requester: Principal = ALICE,
    owner: Principal | None = None,
    renewers: tuple[Principal, ...] = (),
    max_lifetime_ms: int = -1,
    lifetimes: TokenLifetimes = LIFETIMES,
) -> tuple[str, DelegationToken]:
    request = TokenRequest(
        requester=requester, owner=owner or requester, renewers=renewers, max_lifetime_ms=max_lifetime_ms
    )
    decision = decide_create_token(image, request, lifetimes, now_ms=NOW, chance=CHANCE)
    apply(image, *decision.records)
    return decision.reply


def refusal(decide: Callable[[], Decision[object]]) -> ErrorCode:
    with pytest.raises(Refusal) as refused:
        decide()
    return refused.value.code


def test_a_token_has_its_owner_requester_and_renewers() -> None:
    image = ClusterImage()
    token_id, token = create(image, BOB, ALICE, (CAROL,))
    assert (token.owner, token.requester, token.renewers) == ("User:alice", "User:bob", ("User:carol",))
    assert (token.issued_ms, token.expires_ms, token.max_ms) == (NOW, NOW + RENEWAL_MS, NOW + MAX_MS)
    assert len(token_id) == 22
    assert image.tokens.get(token_id) == token
    assert create(image)[0] != token_id


@pytest.mark.parametrize(
    ("asked_ms", "max_ms", "expires_ms"),
    [
        (-1, MAX_MS, RENEWAL_MS),
        (0, MAX_MS, RENEWAL_MS),
        (500, 500, 500),
        (5_000, 5_000, RENEWAL_MS),
        (MAX_MS + 1, MAX_MS, RENEWAL_MS),
        (TIME_MAX_MS, MAX_MS, RENEWAL_MS),
    ],
)
def test_the_lifetime_asked_for_only_shortens_that_of_the_settings(
    asked_ms: int, max_ms: int, expires_ms: int
) -> None:
    _, token = create(ClusterImage(), max_lifetime_ms=asked_ms)
    assert (token.max_ms - NOW, token.expires_ms - NOW) == (max_ms, expires_ms)


def test_tokens_do_not_outlast_the_calendar_whatever_the_settings() -> None:
    image = ClusterImage()
    longest = TokenLifetimes(TIME_MAX_MS, TIME_MAX_MS)
    token_id, token = create(image, lifetimes=longest)
    assert (token.max_ms, token.expires_ms) == (TIME_MAX_MS, TIME_MAX_MS)
    assert decide_renew_token(image, token_id, ALICE, -1, longest, now_ms=NOW).reply == TIME_MAX_MS
    assert decide_expire_token(image, token_id, ALICE, TIME_MAX_MS, now_ms=NOW).reply == TIME_MAX_MS


def test_owner_and_renewers_are_users() -> None:
    image, broker = ClusterImage(), Principal("Broker", "1")
    for request in (
        TokenRequest(requester=ALICE, owner=broker),
        TokenRequest(requester=ALICE, owner=Principal("", "x")),
        TokenRequest(requester=ALICE, owner=ALICE, renewers=(BOB, broker)),
    ):
        code = refusal(
            lambda request=request: decide_create_token(image, request, LIFETIMES, now_ms=NOW, chance=CHANCE)
        )
        assert code is ErrorCode.invalid_principal_type


def test_a_token_whose_principals_are_too_long_is_refused() -> None:
    many = tuple(Principal("User", f"renewer-{number:090}") for number in range(TOKEN_BYTES_MAX // 100))
    request = TokenRequest(requester=ALICE, owner=ALICE, renewers=many)
    code = refusal(lambda: decide_create_token(ClusterImage(), request, LIFETIMES, now_ms=NOW, chance=CHANCE))
    assert code is ErrorCode.invalid_request
    assert len(create(ClusterImage(), renewers=many[:600])[1].renewers) == 600


def test_the_tokens_of_one_requester_have_a_bound() -> None:
    image, renewers = ClusterImage(), tuple(Principal("User", str(number)) for number in range(1_000))
    ids = [create(image, renewers=renewers)[0]]
    size = image.tokens.bytes_of(str(ALICE))
    while image.tokens.bytes_of(str(ALICE)) + size <= REQUESTER_BYTES_MAX:
        ids.append(create(image, renewers=renewers)[0])
    request = TokenRequest(requester=ALICE, owner=ALICE, renewers=renewers)
    decide = lambda: decide_create_token(image, request, LIFETIMES, now_ms=NOW, chance=CHANCE)  # noqa: E731
    assert refusal(decide) is ErrorCode.policy_violation
    create(image, BOB, ALICE, renewers)
    restored = ClusterImage.from_snapshot(image.snapshot())
    assert restored.tokens.bytes_of(str(ALICE)) == image.tokens.bytes_of(str(ALICE)) > 0
    for token_id in ids:
        apply(image, DelegationTokenChanged(id=token_id))
    assert image.tokens.bytes_of(str(ALICE)) == 0


@pytest.mark.parametrize(
    ("period_ms", "later_ms", "expires_ms"),
    [
        (-1, 500, 500 + RENEWAL_MS),
        (0, 500, 500 + RENEWAL_MS),
        (10, 500, 510),  # a renewal may shorten it
        (RENEWAL_MS + 1, 500, 500 + RENEWAL_MS),
        (-1, RENEWAL_MS, 2 * RENEWAL_MS),  # in the last millisecond
    ],
)
def test_a_renewal_begins_now_and_lasts_as_long_as_the_settings_allow(
    period_ms: int, later_ms: int, expires_ms: int
) -> None:
    image = ClusterImage()
    token_id, token = create(image, renewers=(BOB,))
    decision = decide_renew_token(image, token_id, BOB, period_ms, LIFETIMES, now_ms=NOW + later_ms)
    assert decision.reply == NOW + expires_ms
    apply(image, *decision.records)
    renewed = image.tokens.get(token_id)
    assert renewed is not None
    assert renewed.expires_ms == NOW + expires_ms
    assert (renewed.max_ms, renewed.owner, renewed.renewers) == (token.max_ms, token.owner, token.renewers)


def test_no_renewal_goes_beyond_the_maximum_lifetime() -> None:
    image = ClusterImage()
    token_id, token = create(image, max_lifetime_ms=RENEWAL_MS + 1)
    later = NOW + RENEWAL_MS
    assert decide_renew_token(image, token_id, ALICE, -1, LIFETIMES, now_ms=later).reply == token.max_ms
    assert decide_expire_token(image, token_id, ALICE, 10 * MAX_MS, now_ms=later).reply == token.max_ms


@pytest.mark.parametrize("period_ms", [-1, 0, 5])
def test_renewals_are_refused_as_in_kafka(period_ms: int) -> None:
    """An unknown token, then an expired one, then a requester that may not renew."""
    image = ClusterImage()
    token_id, _ = create(image, BOB, ALICE)

    def renew(token: str | None, requester: Principal, now_ms: int) -> ErrorCode:
        return refusal(
            lambda: decide_renew_token(image, token, requester, period_ms, LIFETIMES, now_ms=now_ms)
        )

    expired = NOW + RENEWAL_MS + 1
    assert renew(None, ALICE, NOW) is ErrorCode.delegation_token_not_found
    assert renew("gone", ALICE, NOW) is ErrorCode.delegation_token_not_found
    assert renew(token_id, ALICE, expired) is ErrorCode.delegation_token_expired
    assert renew(token_id, CAROL, expired) is ErrorCode.delegation_token_expired
    assert renew(token_id, CAROL, NOW) is ErrorCode.delegation_token_owner_mismatch
    assert renew(token_id, BOB, NOW) is ErrorCode.delegation_token_owner_mismatch  # only requested it


def test_expiries_are_refused_as_in_kafka() -> None:
    """An unknown token, then a requester that may not, then an expired one unless it is removed."""
    image = ClusterImage()
    token_id, _ = create(image, BOB, ALICE, (CAROL,))

    def expire(token: str | None, requester: Principal, period_ms: int, now_ms: int) -> ErrorCode:
        return refusal(lambda: decide_expire_token(image, token, requester, period_ms, now_ms=now_ms))

    expired = NOW + RENEWAL_MS + 1
    assert expire(None, ALICE, -1, NOW) is ErrorCode.delegation_token_not_found
    assert expire(token_id, BOB, 0, expired) is ErrorCode.delegation_token_owner_mismatch
    assert expire(token_id, BOB, -1, NOW) is ErrorCode.delegation_token_owner_mismatch
    assert expire(token_id, CAROL, 0, expired) is ErrorCode.delegation_token_expired
    assert decide_expire_token(image, token_id, CAROL, 0, now_ms=NOW).reply == NOW
    removed = decide_expire_token(image, token_id, ALICE, -1, now_ms=expired)
    assert removed.reply == expired
    apply(image, *removed.records)
    assert image.tokens.get(token_id) is None


def test_expired_tokens_are_removed_and_no_others() -> None:
    image = ClusterImage()
    create(image, max_lifetime_ms=10)
    kept, _ = create(image)
    assert not decide_remove_expired_tokens(image, now_ms=NOW + 10)
    decision = decide_remove_expired_tokens(image, now_ms=NOW + 11)
    assert decision.reply is False
    apply(image, *decision.records)
    assert [token_id for token_id, _ in image.tokens.items()] == [kept]


def test_one_decision_removes_a_bounded_number() -> None:
    image = ClusterImage()
    token = DelegationToken(owner="User:a", requester="User:a", issued_ms=0, max_ms=1, expires_ms=1)
    for number in range(REMOVALS_MAX + 1):
        image.tokens.apply(DelegationTokenChanged(id=str(number), token=token))
    first = decide_remove_expired_tokens(image, now_ms=2)
    assert (len(first.units), first.reply) == (REMOVALS_MAX, True)
    for (record,) in first.units:
        assert isinstance(record, DelegationTokenChanged)
        image.tokens.apply(record)
    assert decide_remove_expired_tokens(image, now_ms=2).reply is False


def test_a_snapshot_has_the_tokens_in_their_format() -> None:
    image = ClusterImage()
    assert image.snapshot().version < TOKENS_FORMAT_VERSION
    token_id, token = create(image, BOB, ALICE, (CAROL,))
    snapshot = decode_snapshot(encode_snapshot(image.snapshot()))
    assert snapshot.version == TOKENS_FORMAT_VERSION
    assert ClusterImage.from_snapshot(snapshot) == image
    assert ClusterImage.from_snapshot(snapshot).tokens.get(token_id) == token
    (entry,) = entries_of(((DelegationTokenChanged(id=token_id),),), image.controllership)
    assert entry.version == TOKENS_FORMAT_VERSION


def test_an_entry_that_cannot_be_folded_leaves_the_tokens() -> None:
    image = ClusterImage()
    token_id, token = create(image)
    before = image.snapshot()
    removed, added = DelegationTokenChanged(id=token_id), DelegationTokenChanged(id="new", token=token)
    unit = (removed, added, TopicDeleted(topic_id=TopicId("none")))
    (bad,) = entries_of((unit,), image.controllership)
    with pytest.raises(InvariantBroken):
        image.apply_entry(EntryNumber(image.number + 1), bad)
    assert image.snapshot() == before


def test_no_token_has_an_id_that_looks_like_an_option() -> None:
    """One in 64 would: a command line takes a word with a dash for an option."""
    image = ClusterImage()
    assert not [one for one in (create(image)[0] for _ in range(1_000)) if one.startswith("-")]

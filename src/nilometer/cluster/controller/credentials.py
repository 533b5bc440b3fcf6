"""The credentials of users: SCRAM credentials (KIP-554) and delegation tokens (KIP-48, KIP-373)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal, Steps
from nilometer.cluster.entries import record_bytes
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import DelegationTokenChanged, Record, ScramCredentialChanged
from nilometer.identifiers import uuid_to_text
from nilometer.runtime import Entropy
from nilometer.security.delegation_token import DelegationToken
from nilometer.security.principal import USER, Principal
from nilometer.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, credential_of
from nilometer.wire.errors import ErrorCode

# AlterUserScramCredentials: setting and deleting the SCRAM credentials of users (KIP-554).


class ScramDeletion(msgspec.Struct, frozen=True):
    user: str
    mechanism: int
    """The mechanism's number in Kafka's requests."""


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


ScramAlteration = ScramDeletion | ScramUpsertion
ALTERED_TWICE = "A user credential cannot be altered twice in the same request"


def decide_alter_scram_credentials(
    image: ClusterImage, alterations: Sequence[ScramAlteration]
) -> Steps[dict[str, Outcome]]:
    """Decide the alterations in order; the reply has the outcome of each user, errors last.

    As in Kafka, a user is altered once in a request, also if the mechanisms differ: DUPLICATE_RESOURCE.
    """
    records: dict[str, Record] = {}
    errors: dict[str, Outcome] = {}
    for alteration in alterations:
        yield 1
        user = alteration.user
        if user in errors:
            continue
        try:
            if records.pop(user, None) is not None:
                raise Refusal(ErrorCode.duplicate_resource, ALTERED_TWICE)
            records[user] = _record(image, alteration)
        except Refusal as refusal:
            errors[user] = refusal.outcome
    outcomes = dict.fromkeys(records, OK) | {user: errors[user] for user in sorted(errors)}
    return Decision(tuple((record,) for record in records.values()), outcomes)


def _record(image: ClusterImage, alteration: ScramAlteration) -> ScramCredentialChanged:
    if not alteration.user:
        raise Refusal(ErrorCode.unacceptable_credential, "Username must not be empty")
    mechanism = ScramMechanism.numbered(alteration.mechanism)
    if mechanism is None:
        raise Refusal(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    if isinstance(alteration, ScramDeletion):
        if mechanism not in image.scram_users.of(alteration.user):
            raise Refusal(
                ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
            )
        return ScramCredentialChanged(user=alteration.user, mechanism=mechanism)
    _check(alteration)
    credential = credential_of(mechanism, alteration.salted_password, alteration.salt, alteration.iterations)
    return ScramCredentialChanged(user=alteration.user, mechanism=mechanism, credential=credential)


def _check(upsertion: ScramUpsertion) -> None:
    if upsertion.iterations < ITERATIONS_MIN:
        raise Refusal(
            ErrorCode.unacceptable_credential, f"Too few iterations; the minimum is {ITERATIONS_MIN}"
        )
    if upsertion.iterations > ITERATIONS_MAX:
        raise Refusal(
            ErrorCode.unacceptable_credential, f"Too many iterations; the maximum is {ITERATIONS_MAX}"
        )
    if not upsertion.salt or not upsertion.salted_password:
        raise Refusal(ErrorCode.unacceptable_credential, "The salt and the salted password must not be empty")


# CreateDelegationToken, RenewDelegationToken and ExpireDelegationToken (KIP-48, KIP-373), and the removal of
# expired tokens.
#
# The decisions, and the order of their checks, are those of Kafka's controller. A request that is refused
# raises Refusal. Times are in milliseconds, points in time since the Unix epoch.

TIME_MAX_MS = 253_402_300_799_000
"""The last second of the year 9999: tokens do not last longer, whatever the settings."""
TOKEN_BYTES_MAX = 64 * 1024
"""The largest record of a token: every user may create tokens, and all brokers keep them in memory."""
REQUESTER_BYTES_MAX = 4 * 1024 * 1024
"""What the tokens take that one principal has requested: some 6,000 without renewers."""
REMOVALS_MAX = 10_000
"""How many expired tokens one decision removes."""


class TokenLifetimes(msgspec.Struct, frozen=True):
    """The settings of the controller that bound the lifetime of tokens."""

    max_ms: int
    """``delegation.token.max.lifetime.ms``"""
    renewal_ms: int
    """``delegation.token.expiry.time.ms``: for how long a token is valid, once issued or renewed."""


class TokenRequest(msgspec.Struct, frozen=True, kw_only=True):
    requester: Principal
    owner: Principal
    renewers: Sequence[Principal] = ()
    max_lifetime_ms: int = -1
    """Not above 0: as long as the settings allow."""


def check_principals(request: TokenRequest) -> None:
    """Raise Refusal (INVALID_PRINCIPAL_TYPE) unless owner and renewers are users.

    Kafka issues tokens for an owner of another type, but their logins have the type User all the same: they
    would be another principal than the one whose tokens the requester may create.
    """
    for principal in (request.owner, *request.renewers):
        if principal.type != USER:
            why = f"The principal of a delegation token must be of the type {USER}"
            raise Refusal(ErrorCode.invalid_principal_type, why)


def decide_create_token(
    image: ClusterImage, request: TokenRequest, lifetimes: TokenLifetimes, *, now_ms: int, chance: Entropy
) -> Decision[tuple[str, DelegationToken]]:
    """Issue a token; the reply has its id and the token. Raises Refusal."""
    check_principals(request)
    lifetime_ms = lifetimes.max_ms
    if request.max_lifetime_ms > 0:
        lifetime_ms = min(lifetime_ms, request.max_lifetime_ms)
    max_ms = _later(now_ms, lifetime_ms)
    token = DelegationToken(
        owner=str(request.owner),
        requester=str(request.requester),
        renewers=tuple(map(str, request.renewers)),
        issued_ms=now_ms,
        max_ms=max_ms,
        expires_ms=min(max_ms, _later(now_ms, lifetimes.renewal_ms)),
    )
    while image.tokens.get(token_id := uuid_to_text(chance.uuid())) is not None:
        pass
    record = DelegationTokenChanged(id=token_id, token=token)
    if record_bytes([record]) > TOKEN_BYTES_MAX:
        why = f"The principals of a delegation token take at most {TOKEN_BYTES_MAX} bytes"
        raise Refusal(ErrorCode.invalid_request, why)
    if image.tokens.bytes_of(token.requester) + token.size > REQUESTER_BYTES_MAX:
        why = f"The delegation tokens of one requester take at most {REQUESTER_BYTES_MAX} bytes"
        raise Refusal(ErrorCode.policy_violation, why)
    return Decision(((record,),), (token_id, token))


def decide_renew_token(
    image: ClusterImage,
    token_id: str | None,
    requester: Principal,
    period_ms: int,
    lifetimes: TokenLifetimes,
    *,
    now_ms: int,
) -> Decision[int]:
    """Renew a token; the reply is its new expiry. Raises Refusal.

    ``token_id``: of the HMAC in the request, None if no token has it. ``period_ms``: not above 0: as long as
    the settings allow.
    """
    token_id, token = _found(image, token_id)
    if token.is_expired(now_ms):
        raise Refusal(ErrorCode.delegation_token_expired, "The delegation token has expired")
    _check_renewer(token, requester)
    if period_ms > 0:
        period_ms = min(period_ms, lifetimes.renewal_ms)
    else:
        period_ms = lifetimes.renewal_ms
    return _expiring(token_id, token, min(token.max_ms, _later(now_ms, period_ms)))


def decide_expire_token(
    image: ClusterImage, token_id: str | None, requester: Principal, period_ms: int, *, now_ms: int
) -> Decision[int]:
    """Change a token's expiry, or remove it at once if ``period_ms`` is negative; the reply is its expiry.

    ``token_id``: of the HMAC in the request, None if no token has it. Raises Refusal.
    """
    token_id, token = _found(image, token_id)
    _check_renewer(token, requester)
    if period_ms < 0:
        return Decision(((DelegationTokenChanged(id=token_id),),), now_ms)
    if token.is_expired(now_ms):
        raise Refusal(ErrorCode.delegation_token_expired, "The delegation token has expired")
    return _expiring(token_id, token, min(token.max_ms, _later(now_ms, period_ms)))


def decide_remove_expired_tokens(image: ClusterImage, *, now_ms: int) -> Decision[bool]:
    """Remove the tokens that have expired; the reply is whether there may be more of them."""
    expired = [token_id for token_id, token in image.tokens.items() if token.is_expired(now_ms)]
    removed = tuple((DelegationTokenChanged(id=token_id),) for token_id in expired[:REMOVALS_MAX])
    return Decision(removed, len(expired) > REMOVALS_MAX)


def _found(image: ClusterImage, token_id: str | None) -> tuple[str, DelegationToken]:
    token = None if token_id is None else image.tokens.get(token_id)
    if token_id is None or token is None:
        raise Refusal(ErrorCode.delegation_token_not_found, "There is no delegation token with this HMAC")
    return token_id, token


def _check_renewer(token: DelegationToken, requester: Principal) -> None:
    if not token.is_renewed_by(str(requester)):
        why = f"{requester} is neither the owner nor a renewer of the delegation token"
        raise Refusal(ErrorCode.delegation_token_owner_mismatch, why)


def _expiring(token_id: str, token: DelegationToken, expires_ms: int) -> Decision[int]:
    changed = msgspec.structs.replace(token, expires_ms=expires_ms)
    return Decision(((DelegationTokenChanged(id=token_id, token=changed),),), expires_ms)


def _later(now_ms: int, duration_ms: int) -> int:
    return min(now_ms + duration_ms, TIME_MAX_MS)

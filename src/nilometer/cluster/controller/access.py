"""What the controller decides about clients: the ACLs of principals, the credentials by which users log in,
and the quotas of what they may use.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from nilometer.cluster.acl import (
    CLUSTER_NAME,
    Acl,
    AclFilter,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from nilometer.cluster.acl_table import AclId, record_of
from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal, Steps, Stepwise
from nilometer.cluster.entries import Unit, record_bytes
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import (
    AclDeleted,
    ClientQuotaChanged,
    DelegationTokenChanged,
    Record,
    ScramCredentialChanged,
)
from nilometer.identifiers import uuid_to_text
from nilometer.quotas import (
    ADDRESS_KEYS,
    CLIENT_KEYS,
    CONNECTION_CREATION_RATE,
    CONSUMER_BYTE_RATE,
    ENTITY_TYPES,
    IP,
    PRODUCER_BYTE_RATE,
    QuotaEntity,
    canonical_address,
)
from nilometer.runtime import Entropy
from nilometer.security.delegation_token import DelegationToken
from nilometer.security.principal import USER, Principal
from nilometer.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, credential_of
from nilometer.wire.errors import ErrorCode

# CreateAcls and DeleteAcls: each ACL is created or deleted independently of the others of its request.
#
# The checks are those of Kafka's controller. To create an ACL that exists already succeeds and changes
# nothing.

CREATIONS_MAX = 10_000
"""A request that creates or deletes more ACLs than this is rejected, as in Kafka."""

DeletedAcls = tuple[Outcome, tuple[Acl, ...]]
"""The result of one filter of DeleteAcls, and the ACLs that it deleted."""


def decide_create_acls(
    image: ClusterImage, acls: Sequence[Acl], *, chance: Entropy
) -> Decision[tuple[Outcome, ...]]:
    """Create the valid ones of ``acls``; the reply has an outcome for each, in their order."""
    outcomes: list[Outcome] = []
    created: dict[Acl, AclId] = {}
    for acl in acls:
        why = _why_invalid(acl)
        if why is None and len(created) >= CREATIONS_MAX:
            why = f"A request creates at most {CREATIONS_MAX} ACLs."
        outcomes.append(OK if why is None else Outcome(ErrorCode.invalid_request, why))
        if why is None and acl not in image.acls and acl not in created:
            created[acl] = _new_id(image, chance)
    return Decision(tuple((record_of(acl_id, acl),) for acl, acl_id in created.items()), tuple(outcomes))


def _new_id(image: ClusterImage, chance: Entropy) -> AclId:
    while image.acls.has_id(acl_id := uuid_to_text(chance.uuid())):
        pass
    return AclId(acl_id)


def _why_invalid(acl: Acl) -> str | None:
    if acl.resource_type is ResourceType.CLUSTER and acl.resource_name != CLUSTER_NAME:
        return f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}"
    if not acl.resource_name:
        return "Invalid empty resource name"
    if acl.resource_type in (ResourceType.UNKNOWN, ResourceType.ANY):
        return f"Invalid resourceType {acl.resource_type.name}"
    if acl.pattern_type not in (PatternType.LITERAL, PatternType.PREFIXED):
        return f"Invalid patternType {acl.pattern_type.name}"
    if acl.operation in (Operation.UNKNOWN, Operation.ANY):
        return f"Invalid operation {acl.operation.name}"
    if acl.permission not in (Permission.DENY, Permission.ALLOW):
        return f"Invalid permissionType {acl.permission.name}"
    if ":" not in acl.principal:
        return (
            f"Could not parse principal from `{acl.principal}` (no colon is present separating the principal "
            "type from the principal name)"
        )
    return None


@Stepwise
def decide_delete_acls(image: ClusterImage, filters: Sequence[AclFilter]) -> Steps[tuple[DeletedAcls, ...]]:
    """Delete the ACLs that ``filters`` select; the reply has a result for each filter, in their order.

    An ACL that several filters select is in the result of each of them.
    """
    results: list[DeletedAcls] = []
    deleted: dict[AclId, None] = {}
    for each in filters:
        found = yield from image.acls.select(each)
        why = _why_invalid_filter(each)
        if why is None and len(deleted.keys() | found.keys()) > CREATIONS_MAX:
            why = f"Cannot remove more than {CREATIONS_MAX} acls in a single delete operation."
        if why is not None:
            results.append((Outcome(ErrorCode.invalid_request, why), ()))
            continue
        deleted.update(dict.fromkeys(found))
        results.append((OK, tuple(found.values())))
    return Decision(tuple((AclDeleted(id=acl_id),) for acl_id in sorted(deleted)), tuple(results))


def _why_invalid_filter(wanted: AclFilter) -> str | None:
    if wanted.resource_type is ResourceType.UNKNOWN or wanted.pattern_type is PatternType.UNKNOWN:
        return "Unknown patternFilter."
    if wanted.operation is Operation.UNKNOWN or wanted.permission is Permission.UNKNOWN:
        return "Unknown entryFilter."
    return None


# The credentials of users: SCRAM credentials (KIP-554) and delegation tokens (KIP-48, KIP-373).

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
    token_id = uuid_to_text(chance.uuid())
    # As in Kafka none begins with a dash: command lines would take it for an option.
    while token_id.startswith("-") or image.tokens.get(token_id) is not None:
        token_id = uuid_to_text(chance.uuid())
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


# AlterClientQuotas: setting and removing the quotas of entities (KIP-546).
#
# The checks are those of Kafka's controller. Beyond these, a value must be a finite number, and an address is
# one in numbers, because the controller resolves no host names.

_LARGEST = {
    PRODUCER_BYTE_RATE: (2**63 - 1, "a LONG"),
    CONSUMER_BYTE_RATE: (2**63 - 1, "a LONG"),
    CONNECTION_CREATION_RATE: (2**31 - 1, "an INT"),
}
"""The keys whose values are whole numbers, with the largest one and its type."""
_FRACTION_MAX = 1e-6


class QuotaAlteration(msgspec.Struct, frozen=True):
    entity: QuotaEntity
    changes: Sequence[tuple[str, float | None]]
    """Values by key; None removes the quota."""


def decide_alter_client_quotas(
    image: ClusterImage, alterations: Sequence[QuotaAlteration], *, validate_only: bool = False
) -> Decision[dict[QuotaEntity, Outcome]]:
    """Decide the alteration of each entity; the reply has their outcomes.

    An entity's changes are all made or none. As in Kafka, of several alterations of one entity the first is
    made, although its outcome is that of a duplicate: INVALID_REQUEST.
    """
    units: list[Unit] = []
    outcomes: dict[QuotaEntity, Outcome] = {}
    for alteration in alterations:
        entity = alteration.entity
        try:
            keys = Counter(key for key, _ in alteration.changes)
            if entity in outcomes or any(count > 1 for count in keys.values()):
                raise _invalid(f"Ignoring duplicate entity {_shown(entity)}")
            unit = _records(image, entity, dict(alteration.changes))
        except Refusal as refusal:
            outcomes[entity] = refusal.outcome
            continue
        outcomes[entity] = OK
        if unit:
            units.append(unit)
    return Decision(() if validate_only else tuple(units), outcomes)


def _records(image: ClusterImage, entity: QuotaEntity, changes: Mapping[str, float | None]) -> Unit:
    """Return the records of the changes that change something. Raises Refusal."""
    keys = _keys_of(entity)
    current = image.client_quotas.of(entity)
    for key, value in changes.items():
        if value is not None:
            _check_value(keys, key, value)
    return tuple(
        ClientQuotaChanged(entity=entity, key=key, value=value)
        for key, value in changes.items()
        if current.get(key) != value
    )


def _keys_of(entity: QuotaEntity) -> tuple[str, ...]:
    """Return the keys that the entity may have. Raises Refusal if there is no such entity."""
    names = dict(entity)
    if not names:
        raise _invalid("Invalid empty client quota entity")
    for kind, name in entity:
        if kind not in ENTITY_TYPES:
            raise _invalid(f"Unhandled client quota entity type: {kind}")
        if name == "":
            raise _invalid(f"Empty {kind} not supported")
    if IP not in names:
        return CLIENT_KEYS
    if len(names) > 1:
        raise _invalid(
            "Invalid quota entity combination, IP entity should not be combined with User or ClientId"
        )
    address = names[IP]
    if address is not None and canonical_address(address) is None:
        raise _invalid(f"{address} is not a valid IP or resolvable host.")
    return ADDRESS_KEYS


def _check_value(keys: Sequence[str], key: str, value: float) -> None:
    if key not in keys:
        raise _invalid(f"Invalid configuration key {key}")
    if value <= 0:
        raise _invalid(f"Quota {key} must be greater than 0")
    if not math.isfinite(value):
        raise _invalid(f"Quota {key} must be a number")
    if key in _LARGEST:
        largest, kind = _LARGEST[key]
        if value > float(largest):
            raise _invalid(f"Proposed value for {key} is too large for {kind}.")
        if value % 1 > _FRACTION_MAX:
            raise _invalid(f"{key} cannot be a fractional value.")


def _shown(entity: QuotaEntity) -> str:
    names = ", ".join(f"{kind}={'null' if name is None else name}" for kind, name in entity)
    return f"ClientQuotaEntity(entries={{{names}}})"


def _invalid(why: str) -> Refusal:
    return Refusal(ErrorCode.invalid_request, why)

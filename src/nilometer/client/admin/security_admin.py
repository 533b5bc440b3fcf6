"""The admin clients for who may do what, and how much: SCRAM users, delegation tokens, ACLs and quotas;
``nilometer user``, ``token``, ``acl`` and ``quota`` use them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, NoReturn

from nilometer.client.admin.requests import AdminRequests, raise_error
from nilometer.client.network.client import Client
from nilometer.client.network.connection import MakeRequest
from nilometer.cluster.acl import Acl, AclFilter, Operation, PatternType, Permission, ResourceType
from nilometer.cluster.client_quotas import MATCH_DEFAULT, MATCH_EXACT
from nilometer.quotas import QuotaEntity, entity_of
from nilometer.runtime import Runtime
from nilometer.security.principal import Principal
from nilometer.security.scram import SALT_BYTES, ScramMechanism, salt_of, salted_password
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import Api, Message, milliseconds_since_epoch
from nilometer.wire.errors import ErrorCode, KafkaError

# The admin client for SCRAM users (KIP-554); ``nilometer user`` uses it.


class UserCredential(NamedTuple):
    """A credential, as far as brokers show it: never its keys."""

    user: str
    mechanism: str
    iterations: int


class _Salted(NamedTuple):
    mechanism: ScramMechanism
    salt: bytes
    password: bytes


class UserAdmin(AdminRequests):
    def __init__(self, runtime: Runtime, client: Client, timeout_ms: int) -> None:
        """``timeout_ms``: how long a request is repeated when it fails with a retriable error."""
        super().__init__(client, timeout_ms)
        self._runtime = runtime

    async def list_credentials(self, users: Sequence[str] = ()) -> list[UserCredential]:
        """Return the credentials of ``users``, by default of all, sorted.

        Raises KafkaError, with RESOURCE_NOT_FOUND if a user has none.
        """

        def make(api: Api) -> Message:
            names = tuple(api.make_request("UserName", name=user) for user in users)
            return api.request(users=names or None)

        response = await self._any(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, make)
        raise_error(response.error_code, response.error_message)
        for result in response.results:
            raise_error(result.error_code, result.error_message)
        return sorted(
            UserCredential(result.user, _name_of(info.mechanism), info.iterations)
            for result in response.results
            for info in result.credential_infos
        )

    async def set_password(
        self, user: str, password: str, mechanisms: Sequence[ScramMechanism], iterations: int
    ) -> None:
        """Set the password of ``user`` for each of ``mechanisms``. Raises KafkaError.

        As in Kafka the password is salted and hashed here, so that no broker sees it, and a request alters a
        user once: after an error, it may have been set for the mechanisms before.
        """
        for mechanism in mechanisms:
            await self._set_password(user, await self._salted(mechanism, password, iterations), iterations)

    async def _set_password(self, user: str, salted: _Salted, iterations: int) -> None:
        def make(api: Api) -> Message:
            upsertion = api.make_request(
                "ScramCredentialUpsertion",
                name=user,
                mechanism=salted.mechanism.number,
                iterations=iterations,
                salt=salted.salt,
                salted_password=salted.password,
            )
            return api.request(deletions=(), upsertions=(upsertion,))

        await self._alter(make)

    async def remove(self, user: str, mechanisms: Sequence[ScramMechanism]) -> None:
        """Remove the credentials of ``user`` for each of ``mechanisms``.

        Raises KafkaError, with RESOURCE_NOT_FOUND if there is no such credential; those of the mechanisms
        before are then removed.
        """
        for mechanism in mechanisms:
            await self._remove(user, mechanism)

    async def _remove(self, user: str, mechanism: ScramMechanism) -> None:
        def make(api: Api) -> Message:
            deletion = api.make_request("ScramCredentialDeletion", name=user, mechanism=mechanism.number)
            return api.request(deletions=(deletion,), upsertions=())

        await self._alter(make)

    async def _salted(self, mechanism: ScramMechanism, password: str, iterations: int) -> _Salted:
        salt = salt_of(self._runtime.entropy.bytes(SALT_BYTES))
        hashed = await self._runtime.disk.offload(
            lambda: salted_password(mechanism, password, salt, iterations)
        )
        return _Salted(mechanism, salt, hashed)

    async def _alter(self, make: MakeRequest) -> None:
        response = await self._any(ApiKey.ALTER_USER_SCRAM_CREDENTIALS, make)
        for result in response.results:
            raise_error(result.error_code, result.error_message)


def _name_of(number: int) -> str:
    mechanism = ScramMechanism.numbered(number)
    return f"mechanism {number}" if mechanism is None else mechanism.value


# The admin client for delegation tokens (KIP-48, KIP-373); ``nilometer token`` uses it.

OWNER_SINCE_VERSION = 3
_WHY = {
    ErrorCode.delegation_token_auth_disabled: "the brokers have no delegation.token.secret.key",
    ErrorCode.delegation_token_request_not_allowed: "only a user that logged in with SASL or a certificate, "
    "and not by a token, may send requests for tokens",
    ErrorCode.delegation_token_authorization_failed: "the user may not create tokens for this owner",
    ErrorCode.delegation_token_owner_mismatch: "only the owner and the renewers of the token may do that",
    ErrorCode.delegation_token_expired: "the token has expired",
    ErrorCode.delegation_token_not_found: "there is no such token",
    ErrorCode.invalid_principal_type: "owner and renewers must be users: User:NAME",
    ErrorCode.unsupported_version: "not all brokers have been upgraded to a version with delegation tokens",
}
"""What the errors mean, for which brokers send no text."""


@dataclass(frozen=True, slots=True)
class IssuedToken:
    """A delegation token; times are in milliseconds since the Unix epoch."""

    id: str
    """The user of a login by the token."""
    hmac: bytes = field(repr=False)
    """In base 64, the password of a login by the token."""
    owner: str
    """The principal of such a login; so are the others ``type:name``."""
    requester: str
    renewers: tuple[str, ...]
    issued_ms: int
    expires_ms: int
    max_ms: int


class TokenAdmin(AdminRequests):
    async def create(
        self,
        *,
        owner: Principal | None = None,
        renewers: Sequence[Principal] = (),
        max_lifetime_ms: int = -1,
    ) -> IssuedToken:
        """Create a token and return it.

        ``owner``: by default the user of this client. ``max_lifetime_ms``: by default, and at most, what the
        brokers allow. Raises KafkaError.
        """

        def make(api: Api) -> Message:
            if owner is not None and api.version < OWNER_SINCE_VERSION:
                raise KafkaError(
                    ErrorCode.unsupported_version, "the broker issues no tokens for other owners"
                )
            named = tuple(
                api.make_request("CreatableRenewers", principal_type=each.type, principal_name=each.name)
                for each in renewers
            )
            return api.request(
                owner_principal_type=owner and owner.type,
                owner_principal_name=owner and owner.name,
                renewers=named,
                max_lifetime_ms=max_lifetime_ms,
            )

        answer = await self._any(ApiKey.CREATE_DELEGATION_TOKEN, make)
        return IssuedToken(
            id=answer.token_id,
            hmac=answer.hmac,
            owner=str(Principal(answer.principal_type, answer.principal_name)),
            requester=_requester(answer),
            renewers=tuple(map(str, renewers)),
            issued_ms=milliseconds_since_epoch(answer.issue_timestamp),
            expires_ms=milliseconds_since_epoch(answer.expiry_timestamp),
            max_ms=milliseconds_since_epoch(answer.max_timestamp),
        )

    async def renew(self, token_hmac: bytes, period_ms: int = -1) -> int:
        """Renew a token from now on; return its new expiry.

        ``period_ms``: by default, and at most, what the brokers allow. Raises KafkaError.
        """
        answer = await self._any(
            ApiKey.RENEW_DELEGATION_TOKEN,
            lambda api: api.request(hmac=token_hmac, renew_period_ms=period_ms),
        )
        return milliseconds_since_epoch(answer.expiry_timestamp)

    async def expire(self, token_hmac: bytes, period_ms: int = -1) -> int:
        """Make a token expire in ``period_ms``, or remove it now if that is negative; return its expiry.

        Raises KafkaError.
        """
        answer = await self._any(
            ApiKey.EXPIRE_DELEGATION_TOKEN,
            lambda api: api.request(hmac=token_hmac, expiry_time_period_ms=period_ms),
        )
        return milliseconds_since_epoch(answer.expiry_timestamp)

    async def describe(self, owners: Sequence[Principal] | None = None) -> list[IssuedToken]:
        """Return the tokens that this client's user may see, by owner and id.

        ``owners``: only those of which one of these is owner, requester or renewer. Raises KafkaError.
        """

        def make(api: Api) -> Message:
            if owners is None:
                return api.request(owners=None)
            named = tuple(
                api.make_request(
                    "DescribeDelegationTokenOwner", principal_type=each.type, principal_name=each.name
                )
                for each in owners
            )
            return api.request(owners=named)

        answer = await self._any(ApiKey.DESCRIBE_DELEGATION_TOKEN, make)
        return sorted(map(_described, answer.tokens), key=lambda token: (token.owner, token.id))

    async def _any(self, api_key: int, make: MakeRequest) -> Message:
        async def ask() -> Message:
            answer = await self._client.send_to_any(api_key, make)
            if answer.error_code is not ErrorCode.none:
                _refuse(answer.error_code)
            return answer

        return await self._client.retry(ask, self._timeout_ms)


def _described(token: Message) -> IssuedToken:
    return IssuedToken(
        id=token.token_id,
        hmac=token.hmac,
        owner=str(Principal(token.principal_type, token.principal_name)),
        requester=_requester(token),
        renewers=tuple(str(Principal(each.principal_type, each.principal_name)) for each in token.renewers),
        issued_ms=token.issue_timestamp,
        expires_ms=token.expiry_timestamp,
        max_ms=token.max_timestamp,
    )


def _requester(answer: Message) -> str:
    """Return the requester; it is the owner where a broker is too old to tell another."""
    kind = getattr(answer, "token_requester_principal_type", answer.principal_type)
    name = getattr(answer, "token_requester_principal_name", answer.principal_name)
    return str(Principal(kind, name))


def _refuse(error: ErrorCode) -> NoReturn:
    raise KafkaError(error, _WHY.get(error, ""))


# The admin client for ACLs; ``nilometer acl`` uses it.


class AclAdmin(AdminRequests):
    async def list_acls(self, wanted: AclFilter) -> list[Acl]:
        """Return the ACLs that ``wanted`` selects, sorted. Raises KafkaError."""
        fields = _fields_of(wanted)
        response = await self._any(ApiKey.DESCRIBE_ACLS, lambda api: api.request(**fields))
        raise_error(response.error_code, response.error_message)
        return sorted(_acl(resource, acl) for resource in response.resources for acl in resource.acls)

    async def create_acls(self, acls: Sequence[Acl]) -> None:
        """Create ``acls``; those that exist stay as they are. Raises KafkaError for the first that fails."""

        def make(api: Api) -> Message:
            return api.request(creations=tuple(_creation(api, acl) for acl in acls))

        response = await self._any(ApiKey.CREATE_ACLS, make)
        for result in response.results:
            raise_error(result.error_code, result.error_message)

    async def delete_acls(self, wanted: Sequence[AclFilter]) -> list[Acl]:
        """Delete the ACLs that any of ``wanted`` selects, and return them, sorted. Raises KafkaError."""

        def make(api: Api) -> Message:
            filters = (api.make_request("DeleteAclsFilter", **_fields_of(each)) for each in wanted)
            return api.request(filters=tuple(filters))

        deleted: set[Acl] = set()
        for result in (await self._any(ApiKey.DELETE_ACLS, make)).filter_results:
            raise_error(result.error_code, result.error_message)
            deleted.update(_acl(acl, acl) for acl in result.matching_acls)
        return sorted(deleted)


def _creation(api: Api, acl: Acl) -> Message:
    return api.make_request(
        "AclCreation",
        resource_type=int(acl.resource_type),
        resource_name=acl.resource_name,
        resource_pattern_type=int(acl.pattern_type),
        principal=acl.principal,
        host=acl.host,
        operation=int(acl.operation),
        permission_type=int(acl.permission),
    )


def _fields_of(wanted: AclFilter) -> dict[str, object]:
    return {
        "resource_type_filter": int(wanted.resource_type),
        "resource_name_filter": wanted.resource_name,
        "pattern_type_filter": int(wanted.pattern_type),
        "principal_filter": wanted.principal,
        "host_filter": wanted.host,
        "operation": int(wanted.operation),
        "permission_type": int(wanted.permission),
    }


def _acl(resource: Message, acl: Message) -> Acl:
    return Acl(
        ResourceType(resource.resource_type),
        resource.resource_name,
        PatternType(resource.pattern_type),
        acl.principal,
        acl.host,
        Operation(acl.operation),
        Permission(acl.permission_type),
    )


# The admin client for quotas of clients (KIP-546); ``nilometer quota`` uses it.


class EntityQuotas(NamedTuple):
    entity: QuotaEntity
    values: Mapping[str, float]


class QuotaAdmin(AdminRequests):
    async def list_quotas(self, entity: QuotaEntity = (), *, exactly: bool = False) -> list[EntityQuotas]:
        """Return the quotas of all entities that have the names of ``entity``; ``exactly``: and no others.

        Raises KafkaError.
        """

        def make(api: Api) -> Message:
            components = tuple(
                api.make_request(
                    "ComponentData",
                    entity_type=kind,
                    match_type=MATCH_DEFAULT if name is None else MATCH_EXACT,
                    match=name,
                )
                for kind, name in entity
            )
            return api.request(components=components, strict=exactly)

        response = await self._any(ApiKey.DESCRIBE_CLIENT_QUOTAS, make)
        raise_error(response.error_code, response.error_message)
        return [
            EntityQuotas(
                entity_of({each.entity_type: each.entity_name for each in entry.entity}),
                {each.key: each.value for each in entry.values},
            )
            for entry in response.entries or ()
        ]

    async def alter(self, entity: QuotaEntity, changes: Mapping[str, float | None]) -> None:
        """Set quotas of one entity by key; None removes one. Raises KafkaError."""

        def make(api: Api) -> Message:
            entry = api.make_request(
                "EntryData",
                entity=tuple(
                    api.make_request("EntityData", entity_type=kind, entity_name=name)
                    for kind, name in entity
                ),
                ops=tuple(
                    api.make_request("OpData", key=key, value=value or 0.0, remove=value is None)
                    for key, value in changes.items()
                ),
            )
            return api.request(entries=(entry,), validate_only=False)

        for entry in (await self._any(ApiKey.ALTER_CLIENT_QUOTAS, make)).entries:
            raise_error(entry.error_code, entry.error_message)

"""The admin client for delegation tokens (KIP-48, KIP-373); ``nilometer token`` uses it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from nilometer.client.network.client import Client
from nilometer.client.network.connection import MakeRequest
from nilometer.security.principal import Principal
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.building import milliseconds_since_epoch
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message

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


class TokenAdmin:
    def __init__(self, client: Client, timeout_ms: int) -> None:
        """``timeout_ms``: how long a request is repeated when it fails with a retriable error."""
        self._client = client
        self._timeout_ms = timeout_ms

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

    async def _any(self, key: ApiKey, make: MakeRequest) -> Message:
        async def ask() -> Message:
            answer = await self._client.send_to_any(key, make)
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

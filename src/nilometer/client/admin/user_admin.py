"""The admin client for SCRAM users (KIP-554); ``nilometer user`` uses it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from nilometer.client.network.client import Client
from nilometer.client.network.connection import MakeRequest
from nilometer.runtime import Runtime
from nilometer.security.scram import SALT_BYTES, ScramMechanism, salt_of, salted_password
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode, KafkaError
from nilometer.wire.messages import Api, Message


class UserCredential(NamedTuple):
    """A credential, as far as brokers show it: never its keys."""

    user: str
    mechanism: str
    iterations: int


class _Salted(NamedTuple):
    mechanism: ScramMechanism
    salt: bytes
    password: bytes


class UserAdmin:
    def __init__(self, runtime: Runtime, client: Client, timeout_ms: int) -> None:
        """``timeout_ms``: how long a request is repeated when it fails with a retriable error."""
        self._runtime = runtime
        self._client = client
        self._timeout_ms = timeout_ms

    async def list_credentials(self, users: Sequence[str] = ()) -> list[UserCredential]:
        """Return the credentials of ``users``, by default of all, sorted.

        Raises KafkaError, with RESOURCE_NOT_FOUND if a user has none.
        """

        def make(api: Api) -> Message:
            names = tuple(api.make_request("UserName", name=user) for user in users)
            return api.request(users=names or None)

        response = await self._any(ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS, make)
        _check(response.error_code, response.error_message)
        for result in response.results:
            _check(result.error_code, result.error_message)
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
            _check(result.error_code, result.error_message)

    async def _any(self, key: ApiKey, make: MakeRequest) -> Message:
        return await self._client.retry(lambda: self._client.send_to_any(key, make), self._timeout_ms)


def _name_of(number: int) -> str:
    mechanism = ScramMechanism.numbered(number)
    return f"mechanism {number}" if mechanism is None else mechanism.value


def _check(error: ErrorCode, message: str | None) -> None:
    if error is not ErrorCode.none:
        raise KafkaError(error, message or "")

"""The credentials of users in the metadata: SCRAM credentials and delegation tokens."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from nilometer.cluster.records import DelegationTokenChanged, ScramCredentialChanged
from nilometer.security.delegation_token import DelegationToken
from nilometer.security.scram import ScramCredential, ScramMechanism

_NONE: Mapping[ScramMechanism, ScramCredential] = {}


class ScramUsers:
    """Invariant: the table has a user only while the user has a credential."""

    __slots__ = ("_by_user",)

    def __init__(self) -> None:
        self._by_user: dict[str, dict[ScramMechanism, ScramCredential]] = {}

    def names(self) -> list[str]:
        return sorted(self._by_user)

    def of(self, user: str) -> Mapping[ScramMechanism, ScramCredential]:
        return self._by_user.get(user, _NONE)

    def apply(self, record: ScramCredentialChanged) -> Callable[[], None]:
        """Set or remove a credential; return the function that undoes it."""
        before = self.of(record.user).get(record.mechanism)
        self._put(record.user, record.mechanism, record.credential)
        return lambda: self._put(record.user, record.mechanism, before)

    def _put(self, user: str, mechanism: ScramMechanism, credential: ScramCredential | None) -> None:
        credentials = self._by_user.setdefault(user, {})
        credentials.pop(mechanism, None)
        if credential is not None:
            credentials[mechanism] = credential
        elif not credentials:
            del self._by_user[user]

    def snapshot(self) -> tuple[ScramCredentialChanged, ...]:
        return tuple(
            ScramCredentialChanged(user=user, mechanism=mechanism, credential=credential)
            for user in self.names()
            for mechanism, credential in sorted(self._by_user[user].items(), key=lambda item: item[0].number)
        )

    def restore(self, records: Iterable[ScramCredentialChanged]) -> None:
        for record in records:
            self._put(record.user, record.mechanism, record.credential)


class DelegationTokens:
    """All tokens by id, expired ones too until the controller removes them."""

    __slots__ = ("_by_id", "_bytes_of")

    def __init__(self) -> None:
        self._by_id: dict[str, DelegationToken] = {}
        self._bytes_of: Counter[str] = Counter()

    def get(self, token_id: str) -> DelegationToken | None:
        return self._by_id.get(token_id)

    def bytes_of(self, requester: str) -> int:
        """Return about how much memory the tokens take that this principal has requested."""
        return self._bytes_of[requester]

    def items(self) -> list[tuple[str, DelegationToken]]:
        """Return the tokens with their ids, in no order."""
        return list(self._by_id.items())

    def apply(self, record: DelegationTokenChanged) -> Callable[[], None]:
        """Set or remove a token; return the function that undoes it."""
        before = self._by_id.get(record.id)
        self._put(record.id, record.token)
        return lambda: self._put(record.id, before)

    def _put(self, token_id: str, token: DelegationToken | None) -> None:
        before = self._by_id.pop(token_id, None)
        if before is not None:
            self._bytes_of[before.requester] -= before.size
            if not self._bytes_of[before.requester]:
                del self._bytes_of[before.requester]
        if token is not None:
            self._by_id[token_id] = token
            self._bytes_of[token.requester] += token.size

    def snapshot(self) -> tuple[DelegationTokenChanged, ...]:
        return tuple(
            DelegationTokenChanged(id=token_id, token=self._by_id[token_id])
            for token_id in sorted(self._by_id)
        )

    def restore(self, records: Iterable[DelegationTokenChanged]) -> None:
        for record in records:
            self._put(record.id, record.token)

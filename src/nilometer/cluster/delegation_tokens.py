"""The delegation tokens in the metadata."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from nilometer.cluster.records import DelegationTokenChanged
from nilometer.security.delegation_token import DelegationToken


class DelegationTokens:
    """All tokens by id, expired ones too until the controller removes them."""

    __slots__ = ("_by_id",)

    def __init__(self) -> None:
        self._by_id: dict[str, DelegationToken] = {}

    def get(self, token_id: str) -> DelegationToken | None:
        return self._by_id.get(token_id)

    def items(self) -> Iterator[tuple[str, DelegationToken]]:
        """Yield the tokens with their ids, by id."""
        for token_id in sorted(self._by_id):
            yield token_id, self._by_id[token_id]

    def apply(self, record: DelegationTokenChanged) -> Callable[[], None]:
        """Set or remove a token; return the function that undoes it."""
        before = self._by_id.get(record.id)
        self._put(record.id, record.token)
        return lambda: self._put(record.id, before)

    def _put(self, token_id: str, token: DelegationToken | None) -> None:
        if token is None:
            self._by_id.pop(token_id, None)
        else:
            self._by_id[token_id] = token

    def snapshot(self) -> tuple[DelegationTokenChanged, ...]:
        return tuple(DelegationTokenChanged(id=token_id, token=token) for token_id, token in self.items())

    def restore(self, records: Iterable[DelegationTokenChanged]) -> None:
        for record in records:
            self._put(record.id, record.token)

"""The delegation tokens of the metadata as this broker accepts them: with the HMACs that its key gives them.

Made only if ``delegation.token.secret.key`` is set. Brokers with different keys reject each other's tokens.
"""

from __future__ import annotations

from collections.abc import Callable

from nilometer.broker.settings.config import BrokerConfig
from nilometer.cluster.controller.access import TokenLifetimes
from nilometer.cluster.delta import ImageDelta
from nilometer.cluster.image import ClusterImage
from nilometer.runtime import Clock
from nilometer.security.delegation_token import DelegationToken, TokenKey, login_credential
from nilometer.security.principal import parse_principal
from nilometer.security.scram import ScramCredential, ScramMechanism, TokenLogin


class KnownTokens:
    """Invariant: it has an HMAC for each token of the image, and for no other.

    It is to be told of each change of the image.
    """

    def __init__(
        self, key: TokenKey, lifetimes: TokenLifetimes, image: Callable[[], ClusterImage], clock: Clock
    ) -> None:
        self.lifetimes = lifetimes
        """What this broker allows as the controller."""
        self._key = key
        self._image = image
        self._clock = clock
        self._hmacs: dict[str, bytes] = {}
        self._ids: dict[bytes, str] = {}
        self._credentials: dict[str, dict[ScramMechanism, ScramCredential]] = {}
        """By token, made at its first login: that computes for milliseconds."""

    def hmac_of(self, token_id: str) -> bytes:
        return self._hmacs.get(token_id) or self._key.hmac_of(token_id)

    def id_of(self, token_hmac: bytes) -> str | None:
        """Return the id of the token with this HMAC, or None."""
        return self._ids.get(token_hmac)

    def login(self, mechanism: ScramMechanism, token_id: str) -> TokenLogin | None:
        """Return the login of a token's owner; None if there is no such token, or it has expired."""
        token = self._valid(token_id)
        if token is None:
            return None
        make = self._maker(mechanism, token_id)
        if make is not None:
            make()
        credential = self._credentials[token_id][mechanism]
        return TokenLogin(parse_principal(token.owner).name, token.expires_ms, credential)

    def work_before_login(self, mechanism: ScramMechanism, token_id: str) -> Callable[[], None] | None:
        """Return what makes the credential, if a login by the token needs it and it has not been made.

        It computes for milliseconds, and may run in another thread.
        """
        return self._maker(mechanism, token_id) if self.is_valid(token_id) else None

    def _maker(self, mechanism: ScramMechanism, token_id: str) -> Callable[[], None] | None:
        made = self._credentials.setdefault(token_id, {})
        if mechanism in made:
            return None
        token_hmac = self.hmac_of(token_id)

        def make() -> None:
            made[mechanism] = login_credential(mechanism, token_hmac)

        return make

    def _valid(self, token_id: str) -> DelegationToken | None:
        token = self._image().tokens.get(token_id)
        return None if token is None or token.is_expired(self._clock.wall_ms()) else token

    def is_valid(self, token_id: str) -> bool:
        """Return whether a session that began with this token may go on."""
        return self._valid(token_id) is not None

    def on_delta(self, delta: ImageDelta, image: ClusterImage) -> None:
        for token_id in delta.tokens:
            if image.tokens.get(token_id) is None:
                self._forget(token_id)
            else:
                self._learn(token_id)

    def on_reload(self, image: ClusterImage) -> None:
        found = {token_id for token_id, _ in image.tokens.items()}
        for token_id in self._hmacs.keys() - found:
            self._forget(token_id)
        for token_id in found - self._hmacs.keys():
            self._learn(token_id)

    def _learn(self, token_id: str) -> None:
        token_hmac = self._hmacs[token_id] = self._key.hmac_of(token_id)
        self._ids[token_hmac] = token_id

    def _forget(self, token_id: str) -> None:
        token_hmac = self._hmacs.pop(token_id, None)
        if token_hmac is not None:
            del self._ids[token_hmac]
        self._credentials.pop(token_id, None)


def known_tokens(
    config: BrokerConfig, secret: str, image: Callable[[], ClusterImage], clock: Clock
) -> KnownTokens:
    """Return the tokens that a broker with the key ``secret`` accepts."""
    lifetimes = TokenLifetimes(
        config.integer("delegation.token.max.lifetime.ms"), config.integer("delegation.token.expiry.time.ms")
    )
    return KnownTokens(TokenKey(secret), lifetimes, image, clock)

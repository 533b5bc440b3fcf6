"""What the connections of one SASL listener share: its settings, its mechanisms and its users."""

from __future__ import annotations

import base64
from collections.abc import Callable
from typing import TYPE_CHECKING

from nilometer.broker.authentication.unauthenticated import UnauthenticatedConnections
from nilometer.broker.settings.sasl_settings import SaslSettings
from nilometer.cluster.image import ClusterImage
from nilometer.runtime import Runtime
from nilometer.security.oauthbearer import OAUTHBEARER, OAuthBearerServer
from nilometer.security.plain import PLAIN, PlainServer
from nilometer.security.sasl import SaslServer
from nilometer.security.scram import ScramCredential, ScramMechanism, ScramServer, TokenLogin

if TYPE_CHECKING:
    from nilometer.broker.authentication.known_tokens import KnownTokens
    from nilometer.broker.authentication.token_keys import TokenValidator

NONCE_BYTES = 24


class SaslListener:
    def __init__(
        self,
        settings: SaslSettings,
        image: Callable[[], ClusterImage],
        placeholder_key: Callable[[], bytes],
        runtime: Runtime,
        tokens: KnownTokens | None = None,
    ) -> None:
        """``placeholder_key`` returns the secret from which salts of unknown users are made. ``tokens``: the
        delegation tokens by which clients may log in; None: by none."""
        self.settings = settings
        self.clock = runtime.clock
        self.disk = runtime.disk
        self.unauthenticated = UnauthenticatedConnections(settings.unauthenticated_max_per_address)
        self._image = image
        self._placeholder_key = placeholder_key
        self._entropy = runtime.entropy
        self._delegation_tokens = tokens
        self.tokens = _token_validator(settings, runtime)
        """Validates the tokens of OAUTHBEARER; None if that is not enabled."""

    def server(self, mechanism: str) -> SaslServer:
        """Begin an exchange of an enabled mechanism."""
        if mechanism == PLAIN:
            return PlainServer(self.settings.passwords)
        if mechanism == OAUTHBEARER:
            assert self.tokens is not None, "the mechanism is enabled"
            return OAuthBearerServer(self.tokens.validate)
        scram = ScramMechanism(mechanism)

        def find(user: str) -> ScramCredential | None:
            return self._image().scram_users.of(user).get(scram)

        def find_token(token_id: str) -> TokenLogin | None:
            tokens = self._delegation_tokens
            return None if tokens is None else tokens.login(scram, token_id)

        def work_for_token(token_id: str) -> Callable[[], None] | None:
            tokens = self._delegation_tokens
            return None if tokens is None else tokens.work_before_login(scram, token_id)

        nonce = base64.b64encode(self._entropy.bytes(NONCE_BYTES)).decode()
        return ScramServer(scram, find, nonce, self._placeholder_key(), find_token, work_for_token)

    def has_token(self, token_id: str) -> bool:
        """Return whether a session that began with this delegation token may go on."""
        return self._delegation_tokens is not None and self._delegation_tokens.is_valid(token_id)


def _token_validator(settings: SaslSettings, runtime: Runtime) -> TokenValidator | None:
    if settings.oauth is None:
        return None
    from nilometer.broker.authentication.token_keys import TokenValidator  # needs the extra oauth

    return TokenValidator(runtime, settings.oauth)

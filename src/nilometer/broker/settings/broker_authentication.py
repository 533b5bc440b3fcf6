"""By what a connection between brokers is a broker's: the cluster's secret, or the listener's authentication.

With the listener's authentication (``listener``) a connection is a broker's if it comes by the listener
between brokers from a user that may act as a broker, as in Kafka. What cannot work is refused at start.
"""

from __future__ import annotations

import enum
from collections.abc import Collection

from nilometer.broker.settings.listener_security import TlsSettings
from nilometer.broker.settings.listeners import Endpoint
from nilometer.client.settings import ClientSecurity
from nilometer.config import ConfigError, key_table
from nilometer.security.principal import USER, Principal, SecurityProtocol
from nilometer.security.scram import ScramMechanism

AUTHENTICATION = "nilometer.inter.broker.authentication"
SUPER_USERS = "super.users"


class BrokerAuthentication(enum.Enum):
    """The values of ``nilometer.inter.broker.authentication``."""

    SECRET = "require"
    SECRET_OR_NOTHING = "accept"
    LISTENER_OR_SECRET = "listener-or-secret"
    LISTENER = "listener"

    @property
    def uses_secret(self) -> bool:
        """Whether this broker proves that it knows the secret, and accepts that proof."""
        return self is not BrokerAuthentication.LISTENER

    @property
    def uses_listener(self) -> bool:
        """Whether brokers are also accepted by the user of their connection."""
        return self in (BrokerAuthentication.LISTENER, BrokerAuthentication.LISTENER_OR_SECRET)

    @property
    def accepts_unproved(self) -> bool:
        """Whether brokers of versions that cannot prove themselves are accepted."""
        return self is BrokerAuthentication.SECRET_OR_NOTHING


BROKER_AUTHENTICATION_KEYS = key_table(
    f"""
{AUTHENTICATION}: string = {BrokerAuthentication.SECRET.value}
    require: a request between brokers needs a proof, made with the cluster's secret, that its sender is a
    broker of this cluster. listener: it needs a user of the listener between brokers, by SASL or a
    certificate, who is in super.users or may perform CLUSTER_ACTION on the cluster; the secret is not
    used. listener-or-secret: one of the two, for the first of two rolling restarts. accept: requests
    without a proof are accepted too, for the first of two rolling restarts from a version that has no
    proofs.
""",
    choices={"nilometer.inter.broker.authentication": tuple(how.value for how in BrokerAuthentication)},
)


def check_broker_authentication(
    how: BrokerAuthentication,
    listener: Endpoint,
    tls: TlsSettings | None,
    security: ClientSecurity,
    super_users: Collection[str],
    *,
    has_authorizer: bool,
) -> None:
    """Raise ConfigError if ``listener``, that between brokers, cannot authenticate them.

    ``tls``: its TLS, if it has any; ``security``: of this broker's own connections to others.
    """
    if not how.uses_listener:
        return
    if listener.protocol is SecurityProtocol.PLAINTEXT:
        raise _refused(
            how, f"the listener between brokers, {listener.name}, is PLAINTEXT and authenticates no broker"
        )
    if not listener.protocol.has_sasl:
        _check_certificates(how, listener, tls, security)
    if has_authorizer:
        return  # an ACL may name this broker's user
    own = str(Principal(USER, security.user)) if security.user else None
    if not super_users or (own is not None and own not in super_users):
        raise ConfigError(
            SUPER_USERS,
            f"{AUTHENTICATION} is {how.value}, and no ACLs are in use: "
            f"{SUPER_USERS} must name the user of the brokers{f', {own}' if own else ''}",
        )


def _check_certificates(
    how: BrokerAuthentication, listener: Endpoint, tls: TlsSettings | None, security: ClientSecurity
) -> None:
    if tls is None or tls.server.client_auth == "none":
        key = f"listener.name.{listener.name.lower()}.ssl.client.auth"
        raise _refused(
            how, f"the listener between brokers, {listener.name}, asks for no certificate; set {key}=required"
        )
    own = security.tls
    if own is None or (own.files.key_file is None and own.files.key is None):
        raise _refused(how, f"this broker has no certificate for the listener {listener.name}")


def _refused(how: BrokerAuthentication, why: str) -> ConfigError:
    return ConfigError(AUTHENTICATION, f"{AUTHENTICATION} is {how.value}, but {why}")


def unverified_peers(how: BrokerAuthentication, listener: Endpoint, security: ClientSecurity) -> str | None:
    """Return why this broker cannot tell another broker from a process on its port; None if it can.

    With the secret every broker proves itself. Without it a broker that accepts a connection is known by
    its certificate for the host name, or by SCRAM.
    """
    if not how.uses_listener:
        return None
    if listener.protocol.has_tls:
        if security.tls is not None and security.tls.checks_hostname:
            return None
        why = "ssl.endpoint.identification.algorithm is empty"
    elif security.mechanism in {mechanism.value for mechanism in ScramMechanism}:
        return None
    else:
        why = f"{security.mechanism} over {listener.protocol.value} does not authenticate the broker"
    return (
        f"{AUTHENTICATION} is {how.value}, and {why}: a process that takes over a broker's port "
        "gets what is sent to that broker"
    )

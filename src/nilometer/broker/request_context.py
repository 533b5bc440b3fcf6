"""The context of a request: its principal, client address, listener and broker identity."""

from __future__ import annotations

from dataclasses import dataclass, field

from nilometer.security.principal import ANONYMOUS, Principal, SecurityProtocol

NO_BROKER = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestContext:
    """Describes a connection's client; for a forwarded request, the client that sent it first."""

    principal: Principal = ANONYMOUS
    client_address: str = ""
    client_port: int = 0
    listener: str = ""
    """The name of the listener that accepted the connection."""
    security_protocol: SecurityProtocol = SecurityProtocol.PLAINTEXT
    """The protocol of that listener."""
    broker_id: int = NO_BROKER
    """The broker that the connection has proved to be (:mod:`nilometer.broker.api.between_brokers`)."""
    by_token: bool = False
    """Whether the client logged in by a delegation token, so that it gets no other (KIP-48). A forwarded
    request does not say so: the broker that forwarded it has checked it."""
    must_authenticate: bool = False
    """Whether the peer has yet to authenticate: until then its requests count for no client's quota."""
    forwarded_by: int = NO_BROKER
    """The broker that received the request first and forwarded it."""

    is_broker: bool = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "is_broker", self.broker_id != NO_BROKER)  # it is asked for each request

    @property
    def is_forwarded(self) -> bool:
        return self.forwarded_by != NO_BROKER


ANONYMOUS_CONTEXT = RequestContext()

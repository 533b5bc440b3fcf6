"""The broker's settings for what clients may do and use: the authorizer and its audit log, delegation tokens
(KIP-48), quotas and the number of connections.
"""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.config import ConfigError, ConfigValue, key_table
from nilometer.quotas import canonical_address
from nilometer.security.principal import parse_principal

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _why_not_served(text: ConfigValue) -> str | None:
    if text in ("", STANDARD_AUTHORIZER):
        return None
    return f"only {STANDARD_AUTHORIZER} is served, which Nilometer has built in"


AUTHORIZER_KEYS = key_table(
    f"""
authorizer.class.name: string =
    The authorizer: empty (everyone may do everything), or {STANDARD_AUTHORIZER}.
super.users: string =
    The principals with every right, separated by semicolons: User:admin;User:CN=ops,O=Example.
allow.everyone.if.no.acl.found: boolean = false
    Whether everyone has every right on a resource that has no ACL.
nilometer.audit.log.dir: string
    The folder of the audit log; by default .audit in the first log directory.
nilometer.audit.log.max.bytes: long 1024.. = 10_485_760
    The size at which a file of the audit log is followed by the next one.
nilometer.audit.log.files: int 1..1000 = 5
    How many files of the audit log are kept.
""",
    checks={"authorizer.class.name": _why_not_served},
)


def super_users(text: str) -> frozenset[str]:
    """Parse ``super.users``. Raises ConfigError."""
    users = frozenset(part.strip() for part in text.split(";") if part.strip())
    for user in users:
        try:
            parse_principal(user)
        except ValueError as error:
            raise ConfigError(
                "super.users", f"Invalid value for configuration super.users: {error}"
            ) from None
    return users


_DAY_MS = 86_400_000


TOKEN_KEYS = key_table(
    f"""
delegation.token.secret.key: string secret
    The key that makes delegation tokens, the same on all brokers. Without it there are none.
delegation.token.max.lifetime.ms: long 1.. = {7 * _DAY_MS}
    The longest lifetime of a delegation token, which no renewal extends.
delegation.token.expiry.time.ms: long 1.. = {_DAY_MS}
    For how long a delegation token is valid before it must be renewed.
delegation.token.expiry.check.interval.ms: long 1.. = {_DAY_MS // 24}
    How often the controller removes expired delegation tokens.
"""
)


INT_MAX = 2**31 - 1


def addresses_with_limits(text: str) -> Mapping[str, int]:
    """Parse ``address:number,…``, the value of ``max.connections.per.ip.overrides``. Raises ValueError."""
    found: dict[str, int] = {}
    for item in filter(None, (part.strip() for part in text.split(","))):
        host, _, number = item.rpartition(":")
        address = canonical_address(host.strip().removeprefix("[").removesuffix("]"))
        if address is None:
            raise ValueError(
                f"{item!r} is not ADDRESS:NUMBER, as in 127.0.0.1:100 (host names are not known)"
            )
        if not number.strip().isdecimal():
            raise ValueError(f"{item!r} has no number of connections")
        found[address] = int(number)
    return found


def _why_invalid_overrides(text: ConfigValue) -> str | None:
    try:
        addresses_with_limits(str(text))
    except ValueError as error:
        return str(error)
    return None


QUOTA_KEYS = key_table(
    f"""
max.connections: int 0.. = {INT_MAX}
    The maximum number of open connections.
max.connections.per.ip: int 0.. = {INT_MAX}
    The maximum number of open connections from one address; more are closed at once.
max.connections.per.ip.overrides: string =
    Addresses with another maximum, as in 127.0.0.1:100,::1:50.
max.connection.creation.rate: int 1.. = {INT_MAX}
    How many connections per second may be opened, on the broker or on one listener; others wait up to 5 s
    before they are read, or are closed.
quota.window.num: int 1.. = 11
    The number of windows over which quotas of clients are measured, the begun one included.
quota.window.size.seconds: int 1.. = 1
    The length of each of these windows.
controller.quota.window.num: int 1.. = 11
    With the length of the windows: for how many seconds of its controller_mutation_rate a client may
    create and delete partitions at once.
controller.quota.window.size.seconds: int 1.. = 1
    The length of each of these windows.
""",
    checks={"max.connections.per.ip.overrides": _why_invalid_overrides},
)

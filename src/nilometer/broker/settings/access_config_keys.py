"""The broker's settings for what clients may do and use: the authorizer and its audit log, delegation tokens
(KIP-48), quotas and the number of connections.
"""

from __future__ import annotations

from collections.abc import Mapping

from nilometer.config import ConfigError, ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue
from nilometer.quotas.entity import canonical_address
from nilometer.security.principal import parse_principal

STANDARD_AUTHORIZER = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"


def _why_not_served(text: ConfigValue) -> str | None:
    if text in ("", STANDARD_AUTHORIZER):
        return None
    return f"only {STANDARD_AUTHORIZER} is served, which Nilometer has built in"


AUTHORIZER_KEYS = [
    ConfigKey(
        name="authorizer.class.name",
        kind=ConfigKind.STRING,
        default="",
        doc=f"The authorizer: empty (everyone may do everything), or {STANDARD_AUTHORIZER}.",
        validate=_why_not_served,
    ),
    ConfigKey(
        name="super.users",
        kind=ConfigKind.STRING,
        default="",
        doc="The principals with every right, separated by semicolons: User:admin;User:CN=ops,O=Example.",
    ),
    ConfigKey(
        name="allow.everyone.if.no.acl.found",
        kind=ConfigKind.BOOLEAN,
        default=False,
        doc="Whether everyone has every right on a resource that has no ACL.",
    ),
    ConfigKey(
        name="nilometer.audit.log.dir",
        kind=ConfigKind.STRING,
        default=None,
        doc="The folder of the audit log; by default .audit in the first log directory.",
    ),
    ConfigKey(
        name="nilometer.audit.log.max.bytes",
        kind=ConfigKind.LONG,
        default=10_485_760,
        minimum=1024,
        doc="The size at which a file of the audit log is followed by the next one.",
    ),
    ConfigKey(
        name="nilometer.audit.log.files",
        kind=ConfigKind.INT,
        default=5,
        minimum=1,
        maximum=1000,
        doc="How many files of the audit log are kept.",
    ),
]


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


def _duration(name: str, default: int, doc: str) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.LONG, default=default, doc=doc, minimum=1)


TOKEN_KEYS = [
    ConfigKey(
        name="delegation.token.secret.key",
        kind=ConfigKind.STRING,
        default=None,
        doc="The key that makes delegation tokens, the same on all brokers. Without it there are none.",
        sensitive=True,
    ),
    _duration(
        "delegation.token.max.lifetime.ms",
        7 * _DAY_MS,
        "The longest lifetime of a delegation token, which no renewal extends.",
    ),
    _duration(
        "delegation.token.expiry.time.ms",
        _DAY_MS,
        "For how long a delegation token is valid before it must be renewed.",
    ),
    _duration(
        "delegation.token.expiry.check.interval.ms",
        _DAY_MS // 24,
        "How often the controller removes expired delegation tokens.",
    ),
]


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


def _count(name: str, default: int, doc: str, *, minimum: int = 1) -> ConfigKey:
    return ConfigKey(name=name, kind=ConfigKind.INT, default=default, doc=doc, minimum=minimum)


QUOTA_KEYS = [
    _count("max.connections", INT_MAX, "The maximum number of open connections.", minimum=0),
    _count(
        "max.connections.per.ip",
        INT_MAX,
        "The maximum number of open connections from one address; more are closed at once.",
        minimum=0,
    ),
    ConfigKey(
        name="max.connections.per.ip.overrides",
        kind=ConfigKind.STRING,
        default="",
        doc="Addresses with another maximum, as in 127.0.0.1:100,::1:50.",
        validate=_why_invalid_overrides,
    ),
    _count(
        "max.connection.creation.rate",
        INT_MAX,
        "How many connections per second may be opened, on the broker or on one listener; others wait up to "
        "5 s before they are read, or are closed.",
    ),
    _count(
        "quota.window.num",
        11,
        "The number of windows over which quotas of clients are measured, the begun one included.",
    ),
    _count("quota.window.size.seconds", 1, "The length of each of these windows."),
    _count(
        "controller.quota.window.num",
        11,
        "With the length of the windows: for how many seconds of its controller_mutation_rate a client may "
        "create and delete partitions at once.",
    ),
    _count("controller.quota.window.size.seconds", 1, "The length of each of these windows."),
]

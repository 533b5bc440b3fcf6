"""The broker's settings for authorization: the authorizer, its super users, and the audit log."""

from __future__ import annotations

from nilometer.config import ConfigError, ConfigKey, ConfigKind
from nilometer.config.definition import ConfigValue
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

"""The broker's settings for delegation tokens (KIP-48), under Kafka's names."""

from __future__ import annotations

from nilometer.config import ConfigKey, ConfigKind

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

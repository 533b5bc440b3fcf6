"""The flight recorder's settings: whether this broker is recorded, where, and how much."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from nilometer.config import ConfigError, Settings, key_table
from nilometer.security.sasl import parse_jaas, quoted

RECORDER = "nilometer.recorder"
ON, OFF = "on", "off"
WITH_LOGINS = "with-logins"
"""Also a broker with SASL: what clients send to log in is recorded."""

RECORDER_KEYS = key_table(
    f"""
{RECORDER}: string = {OFF}
    Whether all input of this broker (requests, clock, disk) is recorded from its start on, to replay it: on,
    off, or {WITH_LOGINS}. A recording has records, the secret of the cluster and the keys of SCRAM users, as
    the log directories do: keep it as private as those. Passwords and keys of settings are left out, and
    `nilometer recorder save` leaves out all secrets. Not with ZooKeeper, OAUTHBEARER or delegation tokens. A
    broker with SASL is recorded only by {WITH_LOGINS}: then the recording has what clients send to log in, as
    the passwords of PLAIN. A broker whose recording cannot be written serves without it, and logs an error;
    one whose recording is cut or emptied by another program dies: remove recordings, never truncate them.
nilometer.recorder.dir: string =
    The folder of the recordings. Empty: the first log directory's path with "-recordings" behind it.
nilometer.recorder.max.bytes: long 33_554_432.. = {1024**3}
    How large all recordings of this broker may become together. One ends at half of it; the oldest are
    removed when the broker starts, but not the newest one.
nilometer.recorder.max.minutes: int 1.. = 1440
    After so long a recording ends.
""",
    choices={RECORDER: (ON, OFF, WITH_LOGINS)},
)


class RecorderSettings(msgspec.Struct, frozen=True, kw_only=True):
    folder: str
    bytes_max: int
    """Of all recordings in the folder."""
    minutes_max: int

    @property
    def recording_bytes_max(self) -> int:
        return self.bytes_max // 2


def recorder_settings(
    settings: Settings,
    log_dirs: Sequence[str],
    coordination: str,
    *,
    has_sasl: bool,
    has_oauth: bool,
    has_tokens: bool,
) -> RecorderSettings | None:
    """Return None if nothing is recorded. Raises ConfigError."""
    given = settings.string(RECORDER)
    if given == OFF:
        return None
    if coordination.startswith("zookeeper://"):
        _refuse(given, "ZooKeeper: its client has threads of its own, which cannot be replayed")
    if has_oauth:
        _refuse(given, "OAUTHBEARER: its tokens would be in the recording")
    if has_tokens:
        _refuse(given, "delegation tokens: they would be in the recording")
    if has_sasl and given != WITH_LOGINS:
        _refuse(
            given,
            "SASL: what clients send to log in would be in the recording. To have it there, set "
            f"{RECORDER}={WITH_LOGINS}; `nilometer recorder save` makes copies without it",
        )
    return RecorderSettings(
        folder=settings.string("nilometer.recorder.dir") or f"{log_dirs[0]}-recordings",
        bytes_max=settings.integer("nilometer.recorder.max.bytes"),
        minutes_max=settings.integer("nilometer.recorder.max.minutes"),
    )


JAAS_CONFIG = "sasl.jaas.config"
LEFT_OUT = "left-out"


def _refuse(given: str, why: str) -> None:
    raise ConfigError(RECORDER, f"{RECORDER}={given} is not possible with {why}")


def recorded_settings(settings: Mapping[str, str]) -> dict[str, str]:
    """Return a broker's settings with stand-ins for the passwords in its login modules, so that they can be
    read again."""
    return {
        name: _without_passwords(value) if name.endswith(JAAS_CONFIG) else value
        for name, value in settings.items()
    }


def _without_passwords(jaas: str) -> str:
    module = parse_jaas(jaas)
    options = {name: value if name == "username" else LEFT_OUT for name, value in module.options.items()}
    shown = " ".join(f"{name}={quoted(value)}" for name, value in options.items())
    return f"{module.name} required {shown};"

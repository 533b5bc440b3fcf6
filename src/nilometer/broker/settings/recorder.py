"""The flight recorder's settings: whether this broker is recorded, where, and how much."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from nilometer.config import ConfigError, Settings, key_table

RECORDER = "nilometer.recorder"
ON, OFF = "on", "off"

RECORDER_KEYS = key_table(
    f"""
{RECORDER}: string = {OFF}
    Whether all input of this broker (requests, clock, disk) is recorded from its start on, to replay it: on
    or off. A recording has records, the secret of the cluster and the keys of SCRAM users, as the log
    directories do: keep it as private as those. Passwords and keys of settings are left out. Not with
    ZooKeeper, and not with SASL or delegation tokens. A broker whose recording cannot be written serves
    without it, and logs an error.
nilometer.recorder.dir: string =
    The folder of the recordings. Empty: the first log directory's path with "-recordings" behind it.
nilometer.recorder.max.bytes: long 33_554_432.. = {1024**3}
    How large all recordings of this broker may become together. One ends at half of it; the oldest are
    removed when the broker starts, but not the newest one.
nilometer.recorder.max.minutes: int 1.. = 1440
    After so long a recording ends.
""",
    choices={RECORDER: (ON, OFF)},
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
    settings: Settings, log_dirs: Sequence[str], coordination: str, *, has_sasl: bool, has_tokens: bool
) -> RecorderSettings | None:
    """Return None if nothing is recorded. Raises ConfigError."""
    if settings.string(RECORDER) == OFF:
        return None
    if coordination.startswith("zookeeper://"):
        _refuse("ZooKeeper: its client has threads of its own, which cannot be replayed")
    if has_sasl:
        _refuse("SASL: its passwords would be in the recording")
    if has_tokens:
        _refuse("delegation tokens: they would be in the recording")
    return RecorderSettings(
        folder=settings.string("nilometer.recorder.dir") or f"{log_dirs[0]}-recordings",
        bytes_max=settings.integer("nilometer.recorder.max.bytes"),
        minutes_max=settings.integer("nilometer.recorder.max.minutes"),
    )


def _refuse(why: str) -> None:
    raise ConfigError(RECORDER, f"{RECORDER}={ON} is not possible with {why}")

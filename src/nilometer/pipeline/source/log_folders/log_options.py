"""The options of ``format("nilometer-log")``: the folders, and what to read from them.

The options of both data sources (topics, offsets, times, tasks) are checked by ``source_options``; this
module checks those of this source only. An invalid option raises :class:`OptionError`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from nilometer.pipeline.errors import OptionError
from nilometer.pipeline.source.source_options import SourceOptions, parse_options

OWN = {
    "path": "a partition's folder, a log directory, or a folder of several; also what load() is given",
    "paths": "several of these, as a JSON list; also what load([...]) is given",
    "logDirs": "several of these, separated by commas",
    "archive": "the folder or URI of an archive, read before the log; then path and the like may be left out",
    "archiveTopicId": "the id of an archived topic, if the archive has several topics of that name",
    "highWatermark": "checkpoint (default): read up to what is checkpointed; logEnd: all that is there",
    "isolation.level": "read_uncommitted (default) or read_committed",
    "bytesPerPartition": "about how many bytes of segments one task reads; a number of 1 or more",
}
NOT_FOR_FOLDERS = ("groupidprefix", "kafkaconsumer.polltimeoutms")
BYTES_PER_PARTITION = 64 * 1024 * 1024
ISOLATION_LEVELS = ("read_uncommitted", "read_committed")
HIGH_WATERMARKS = ("checkpoint", "logEnd")

_CANONICAL = {name.lower(): name for name in OWN} | {"kafka.isolation.level": "isolation.level"}
_CHOICES = ("subscribe", "assign", "subscribepattern")
_NO_BROKER = {"kafka.bootstrap.servers": "folders:1"}
"""A placeholder: the shared options require brokers, which this source does not use."""


@dataclass(frozen=True, slots=True)
class LogOptions:
    places: tuple[str, ...]
    until_log_end: bool
    read_committed: bool
    bytes_per_partition: int
    archive: str | None
    archive_topic_id: str | None
    common: SourceOptions
    """The options of both sources; without a choice of topics all but the internal ones are read."""


def parse_log_options(given: Mapping[str, str]) -> LogOptions:
    """Parse the options that Spark passes; keys are case-insensitive. Raises OptionError."""
    own: dict[str, str] = {}
    common: dict[str, str] = {}
    for key, value in given.items():
        name = key.lower()
        if name in _CANONICAL:
            own[_CANONICAL[name]] = value
        elif name.startswith("kafka.") or name in NOT_FOR_FOLDERS:
            raise OptionError(key, value, f"has no effect here, because no broker is contacted. {_allowed()}")
        else:
            common[key] = value
    chosen = any(key.lower() in _CHOICES for key in common)
    choice = {} if chosen else {"subscribePattern": ".*"}
    try:
        shared = parse_options({**common, **choice, **_NO_BROKER}, streaming=False)
    except OptionError as error:
        if "no such option" not in str(error):
            raise
        raise OptionError(
            error.option, given.get(error.option), f"there is no such option. {_allowed()}"
        ) from None
    return LogOptions(
        places=_places(own),
        archive=_archive(own),
        archive_topic_id=own.get("archiveTopicId"),
        until_log_end=_one_of(own, "highWatermark", HIGH_WATERMARKS) == "logEnd",
        read_committed=_one_of(own, "isolation.level", ISOLATION_LEVELS) == "read_committed",
        bytes_per_partition=_positive(own, "bytesPerPartition", BYTES_PER_PARTITION),
        common=shared,
    )


def _allowed() -> str:
    return f"Allowed are {', '.join(OWN)}, and those of topics, offsets and tasks that nilometer has"


def _places(own: Mapping[str, str]) -> tuple[str, ...]:
    places: list[str] = []
    if own.get("path"):
        places.append(own["path"])
    if "paths" in own:
        places += _listed(own["paths"])
    places += [place.strip() for place in own.get("logDirs", "").split(",") if place.strip()]
    if not places and not own.get("archive"):
        raise OptionError(
            "path", None, f"one of path, paths, logDirs and archive must be given: {OWN['path']}"
        )
    return tuple(dict.fromkeys(places))


def _archive(own: Mapping[str, str]) -> str | None:
    archive = own.get("archive")
    if archive is None:
        if "archiveTopicId" in own:
            raise OptionError("archiveTopicId", own["archiveTopicId"], "has no effect without archive")
        return None
    if not archive.strip():
        raise OptionError("archive", archive, f"must be {OWN['archive']}")
    return archive.strip()


def _listed(text: str) -> list[str]:
    try:
        parsed: Any = json.loads(text)
    except ValueError:
        parsed = None
    if not isinstance(parsed, list) or not all(isinstance(one, str) for one in cast(list[Any], parsed)):
        raise OptionError("paths", text, f"must be {OWN['paths']}")
    return cast(list[str], parsed)


def _one_of(own: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    value = own.get(name, allowed[0])
    for one in allowed:
        if value.strip().lower() == one.lower():
            return one
    raise OptionError(name, value, f"must be one of {', '.join(allowed)}")


def _positive(own: Mapping[str, str], name: str, default: int) -> int:
    value = own.get(name)
    if value is None:
        return default
    if not value.strip().isdecimal() or int(value) < 1:
        raise OptionError(name, value, f"must be {OWN[name]}")
    return int(value)

"""The recordings that the console replays: the shipped scenarios, and files that its command line names.

A browser chooses one by a name from this list, never by a path.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

import msgspec

from nilometer.replication.follower import TruncationRule
from nilometer.simulation.recording import BadRecording, Recording, read_recording
from nilometer.simulation.replay import Replay
from nilometer.simulation.scenarios import SCENARIOS, recorded

OLD_RULE_SCENARIO = "data-loss"
"""The scenario that is also shown with the rule before leader epochs."""


class Listed(msgspec.Struct, frozen=True):
    name: str
    title: str
    description: str
    is_file: bool
    events: int
    findings: int


class _Source(msgspec.Struct, frozen=True):
    is_file: bool
    load: Callable[[], Recording]


class Recordings:
    """The recordings that the console shows: files, which are read at the start, and the built-in scenarios.

    Invariant: a scenario is run once, when it is first shown.
    """

    def __init__(self, files: Iterable[Path] = ()) -> None:
        """Raises BadRecording and OSError, which name the file."""
        self._sources = {**_files(files), **_scenarios()}
        self._replays: dict[str, Replay] = {}

    @property
    def first_file(self) -> str | None:
        """The name of the first recording that is a file."""
        return next((name for name, source in self._sources.items() if source.is_file), None)

    def replay(self, name: str) -> Replay | None:
        """Return the replay of this name; None: there is none."""
        if name not in self._replays:
            source = self._sources.get(name)
            if source is None:
                return None
            self._replays[name] = Replay(source.load())
        return self._replays[name]

    def listed(self) -> tuple[Listed, ...]:
        return tuple(self._listed(name, source) for name, source in self._sources.items())

    def _listed(self, name: str, source: _Source) -> Listed:
        replay = self.replay(name)
        assert replay is not None, name
        header = replay.recording.header
        return Listed(
            name,
            header.title,
            header.description,
            source.is_file,
            len(replay.events),
            len(replay.findings),
        )


def _files(paths: Iterable[Path]) -> dict[str, _Source]:
    recordings = [read_file(path) for path in paths]
    return {f"file-{number}": _Source(True, partial(_same, one)) for number, one in enumerate(recordings, 1)}


def _scenarios() -> dict[str, _Source]:
    sources: dict[str, _Source] = {}
    for name, scenario in SCENARIOS.items():
        if name == OLD_RULE_SCENARIO:
            old = TruncationRule.TO_HIGH_WATERMARK
            sources[f"{name}-{old.value}"] = _Source(False, partial(recorded, scenario, old))
        sources[name] = _Source(False, partial(recorded, scenario, TruncationRule.BY_LEADER_EPOCH))
    return sources


def _same(recording: Recording) -> Recording:
    return recording


def read_file(path: Path) -> Recording:
    """Raises BadRecording, OSError."""
    with path.open("rb") as lines:
        try:
            return read_recording(lines)
        except BadRecording as error:
            raise BadRecording(f"{path} cannot be replayed: {error}") from None

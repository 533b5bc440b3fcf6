"""The state of ingest: what is remembered of files that are gone, and how it is written."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from ingest_sources import LOG, source_of

from nilometer.client.ingest.found_files import FoundFile, Look
from nilometer.client.ingest.source import Fingerprint, Source
from nilometer.client.ingest.state_file import BadState, IngestState, decode_state, encode_state
from nilometer.client.ingest.tracker import FORGET_AWAY_MS, FORGET_MS, GONE_MAX, decide_missing


def gone(number: int, since_ms: int | None = None, path: str = "/l/a.log") -> Source:
    return replace(source_of(path, 5, LOG, number), gone_ms=since_ms)


def test_file_that_is_gone_is_remembered_for_an_hour() -> None:
    look = Look(1, (FoundFile("/l/other", 1, 9, 0),))
    assert decide_missing([gone(0)], look, 5_000) == ([gone(0, 5_000)], [])
    assert decide_missing([gone(0, 5_000)], look, 5_000 + FORGET_MS) == ([], [0])


def test_file_of_a_folder_that_is_away_is_remembered() -> None:
    look = Look(1, (FoundFile("/l/other", 1, 9, 0),))
    away = gone(0, 5_000, "/m/a.log")
    assert decide_missing([away], look, 5_000 + FORGET_MS) == ([away], [])
    assert decide_missing([away], look, 5_000 + FORGET_AWAY_MS) == ([], [0])


def test_only_so_many_gone_files_are_remembered() -> None:
    look = Look(1, (FoundFile("/l/other", 1, 9, 0),))
    kept, forgotten = decide_missing([gone(number) for number in range(GONE_MAX + 3)], look, 0)
    assert (len(kept), forgotten) == (GONE_MAX, [0, 1, 2])


def test_state_survives_being_written() -> None:
    state = IngestState("abc", "cluster", "t", "id", {0: 5, 3: 9})
    state.add("/l/a.log", 1, 2)
    state.sources[0] = source_of("/l/a.log", 2, LOG, finished=True)
    state.add("/l/ü b.log", 1, 3, 77)
    state.sources[1] = replace(state.sources[1], read_at=(5, 6), skipped=True, truncated=True, gone_ms=8)
    state.there[0] = {7: {12}, 9: {13, 14}}
    state.watched.add("/l")
    state.may_be_unread.add((1, 4))
    assert decode_state(encode_state(state), "x") == state
    assert state.number_of(state.tag(1)) == 1
    assert state.number_of(b"other-1") is None
    assert state.number_of(b"\xff") is None


def test_state_of_the_version_before_is_read() -> None:
    entry = {
        "number": 4,
        "path": "/l/a.log",
        "device": 1,
        "inode": 2,
        "offset": 9,
        "head": "aa",
        "tail": "bb",
        "preview": [3, "cc", "dd"],
        "lines": 2,
        "finished": True,
    }
    document = {
        "version": 1,
        "name": "abc",
        "cluster_id": "cluster",
        "topic": "t",
        "topic_id": "id",
        "partitions": {"0": 5},
        "next_number": 5,
        "sources": [entry],
    }
    state = decode_state(json.dumps(document).encode(), "x")
    assert state.sources == {
        4: Source(4, "/l/a.log", 1, 2, Fingerprint(9, "aa", "bb"), Fingerprint(3, "cc", "dd"), 2, True)
    }
    assert (state.there, state.watched, state.may_be_unread) == ({}, set(), set())
    assert decode_state(encode_state(state), "x") == state


@pytest.mark.parametrize("data", [b"", b"[]", b"{}", b'{"version": 9}', b'{"version": 1, "sources": [1]}'])
def test_state_that_is_none_is_refused_with_advice(data: bytes) -> None:
    with pytest.raises(BadState, match=r"state\.json"):
        decode_state(data, "state.json")

"""Histories of real runs, in the form of Jepsen's: nothing is wrong with them, and whatever is edited into
one is found from the file alone. And the report of several runs."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.evidence import __main__ as play_module
from support.evidence import jepsen_history
from support.evidence.campaigns import CAMPAIGNS, Campaign
from support.evidence.edn import Keyword, parsed, written
from support.evidence.jepsen_history import (
    CLIENT,
    FAIL,
    INFO,
    INVOKE,
    OK,
    POLL,
    PROCESS,
    SEND,
    TXN,
    TYPE,
    VALUE,
    F,
    judged,
    load,
)
from support.evidence.record import Verdict
from support.evidence.report import BEGIN, END, Run, append_run, load_runs, with_tables
from support.simulation.history import History, Outcome

SAMPLES = Path(jepsen_history.__file__).with_name("samples")
Operations = list[dict[Any, Any]]
PAGE = Path(__file__).resolve().parents[1] / "docs" / "evidence" / "index.md"


def done(history: Operations, f: str, client: str | None = None) -> Iterator[dict[Any, Any]]:
    """Yield the operations that were answered, of one client or of all."""
    for one in history:
        if one[F] == f and one[TYPE] == OK and client in (None, one[CLIENT]):
            yield one


def records(history: Operations, partition: str, *clients: str) -> Iterator[list[Any]]:
    """Yield the records of the partition that these consumers were given, in the order of their polls."""
    for one in done(history, POLL):
        if not clients or one[CLIENT] in clients:
            yield from one[VALUE][0][1].get(partition, ())


def forget(history: Operations, partition: str, value: str, *clients: str) -> None:
    for one in done(history, POLL):
        if not clients or one[CLIENT] in clients:
            found = one[VALUE][0][1].get(partition, [])
            found[:] = [record for record in found if record[1] != value]


def middle(history: Operations, client: str) -> list[Any]:
    """Return the ``[:send PARTITION [OFFSET VALUE]]`` in the middle of what a producer sent."""
    found = list(done(history, SEND, client))
    return found[len(found) // 2][VALUE][0]  # type: ignore[no-any-return]


def lost(history: Operations) -> None:
    _, partition, (_, value) = middle(history, "w0")
    forget(history, partition, value)


def repeated(history: Operations) -> None:
    _, partition, (_, value) = middle(history, "w0")
    read = list(done(history, POLL, "last"))
    end = max(record[0] for record in records(history, partition))
    read[-1][VALUE][0][1].setdefault(partition, []).append([end + 1, value])


def refused_and_read(history: Operations) -> None:
    operation = next(done(history, SEND, "own"))
    operation[TYPE] = FAIL
    operation[VALUE][0][2] = operation[VALUE][0][2][1]


def changed(history: Operations) -> None:
    _, partition, (offset, _) = middle(history, "w1")
    next(one for one in records(history, partition, "tail") if one[0] == offset)[1] = "another"


def acknowledged_in_another_order(history: Operations) -> None:
    _, partition, _ = middle(history, "w1")
    sent = [one[VALUE][0] for one in done(history, SEND, "w1") if one[VALUE][0][1] == partition]
    sent[3][2][0], sent[4][2][0] = sent[4][2][0], sent[3][2][0]


def long_poll(history: Operations, client: str) -> list[list[Any]]:
    """Return three records or more of one partition in one poll."""
    return next(  # type: ignore[no-any-return]
        found for one in done(history, POLL, client) for found in one[VALUE][0][1].values() if len(found) > 2
    )


def read_backwards(history: Operations) -> None:
    found = long_poll(history, "own-reader")
    found[0], found[1] = found[1], found[0]


def passed_over(history: Operations) -> None:
    del long_poll(history, "tail")[1]


def not_seen_at_the_end(history: Operations) -> None:
    partition = middle(history, "own")[1]
    offset, value = max(records(history, partition, "last"))
    forget(history, partition, value, "last")
    assert offset > 0


def aborted_and_read(history: Operations) -> None:
    next(done(history, TXN))[TYPE] = FAIL


def of_two_records(history: Operations) -> dict[Any, Any]:
    return next(one for one in done(history, TXN) if len(one[VALUE]) > 2)


def torn_apart(history: Operations) -> None:
    _, partition, (_, value) = of_two_records(history)[VALUE][1]
    forget(history, partition, value)


def written_behind_its_successor(history: Operations) -> None:
    earlier, later = list(done(history, TXN, "librdkafka-0"))[:2]
    first = earlier[VALUE][0]
    other = next(one for one in later[VALUE] if one[1] == first[1])
    for record in records(history, first[1], "last"):
        swapped = {first[2][1]: other[2][1], other[2][1]: first[2][1]}
        record[1] = swapped.get(record[1], record[1])


def read_from_each_other(history: Operations) -> None:
    one, other = list(done(history, TXN))[:2]
    for reader, writer in ((one, other), (other, one)):
        _, partition, sent = writer[VALUE][0]
        reader[VALUE].append([POLL, {partition: [list(sent)]}])


@pytest.mark.parametrize(
    ("sample", "edit", "kind"),
    [
        ("sends", lost, "lost-write"),
        ("sends", repeated, "duplicate"),
        ("sends", refused_and_read, "aborted-read"),
        ("sends", changed, "inconsistent-offsets"),
        ("sends", acknowledged_in_another_order, "nonmonotonic-send"),
        ("sends", read_backwards, "nonmonotonic-poll"),
        ("sends", passed_over, "poll-skip"),
        ("sends", not_seen_at_the_end, "unseen"),
        ("transactions", aborted_and_read, "aborted-read"),
        ("transactions", torn_apart, "torn transaction"),
        ("transactions", written_behind_its_successor, "G0"),
        ("transactions", read_from_each_other, "G1c"),
    ],
)
def test_an_anomaly_that_is_edited_into_a_history_is_found(
    sample: str, edit: Callable[[Operations], None], kind: str
) -> None:
    text = load(SAMPLES / f"{sample}.edn.gz")
    assert judged(text) == []
    history: Operations = [parsed(line) for line in text]
    edit(history)
    found = judged(map(written, history))
    assert any(kind in one for one in found), found


@pytest.mark.parametrize("sample", ["sends", "transactions"])
def test_a_history_is_as_jepsens_checkers_expect_it(sample: str) -> None:
    text = load(SAMPLES / f"{sample}.edn.gz")
    assert [written(parsed(line)) + "\n" for line in text] == text
    history: Operations = [parsed(line) for line in text]
    open_by = dict[int, Any]()
    ended = set[int]()
    """Processes of which an outcome is not known: another one goes on for the client."""
    for index, one in enumerate(history):
        assert one[jepsen_history.INDEX] == index
        if isinstance(one[PROCESS], Keyword):
            assert one[PROCESS] in ("nemesis", "checker") and one[TYPE] == INFO
            continue
        assert one[PROCESS] not in ended
        if one[TYPE] == INFO:
            ended.add(one[PROCESS])
        if one[TYPE] == INVOKE:
            assert one[PROCESS] not in open_by, "a process does one thing at a time"
            open_by[one[PROCESS]] = one[F]
        else:
            assert open_by.pop(one[PROCESS]) == one[F]
    assert not open_by
    values = [
        (micro[1], micro[2])
        for one in history
        if one[TYPE] == INVOKE
        for micro in one[VALUE]
        if micro[0] == SEND
    ]
    assert len(values) == len(set(values)) > 500


@pytest.mark.parametrize("text", ["", "{:a", "{:a 1", "[1 2", "{:a}", '"a', "1 2", "}", "x"])
def test_what_is_no_edn_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parsed(text)


def test_what_is_no_operation_is_refused() -> None:
    for line in ("[]", "{:type :ok}", '{:process 1, :client "p", :type :ok, :f :dance, :value nil}'):
        with pytest.raises(ValueError, match="no operation"):
            judged([line])


def test_another_process_goes_on_after_an_outcome_that_is_not_known() -> None:
    history = History()
    for outcome in (Outcome.OK, Outcome.UNKNOWN, Outcome.FAILED):
        history.send("w", "t-0", f"{outcome.value}....").outcome = outcome
    text = list(jepsen_history.lines(history, faults=[(1, "kills 1")]))
    told = [(one.get(CLIENT), one[PROCESS], one[TYPE]) for one in map(parsed, text)]
    assert told == [
        ("w", 0, INVOKE),
        ("w", 0, OK),
        (None, "nemesis", INFO),
        ("w", 0, INVOKE),
        ("w", 0, INFO),
        ("w", 1, INVOKE),
        ("w", 1, FAIL),
    ]
    assert '[nil "ok"]' in text[1] and '"unknown"' in text[4]


class Played:
    """Runs of campaigns that take no time; ``ends_early`` are campaigns that leave no verdict."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, folder: Path, *ends_early: str) -> None:
        self.campaigns = list[str]()
        self._ends_early = ends_early
        monkeypatch.setattr(play_module, "_play", self._play)
        monkeypatch.setattr(play_module, "OWN", folder)
        monkeypatch.setattr(play_module, "HISTORIES", {folder: folder / "histories"})

    def _play(self, campaign: Campaign, seed: int, minutes: float, histories: Path) -> Run:
        self.campaigns.append(campaign.name)
        ended = campaign.name in self._ends_early
        verdict = Verdict(seed, 1.0 if ended else 60 * minutes + 45, {}, {}, [], "" if ended else "a", 1)
        return Run(campaign.name, "2026-01-31", "abc", "CPython 3.11.2", minutes, verdict)


def test_each_campaign_is_played_although_runs_take_longer(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    played = Played(monkeypatch, tmp_path)
    assert CliRunner().invoke(play_module.main, ["play", "--minutes", "10"]).exit_code == 0
    assert played.campaigns == [one.name for one in CAMPAIGNS]
    assert CliRunner().invoke(play_module.main, ["play", "--minutes", "10"]).exit_code == 0
    assert len(played.campaigns) == len(CAMPAIGNS), "that is enough"


def test_a_campaign_that_cannot_be_played_ends_the_call(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    played = Played(monkeypatch, tmp_path, "quorum")
    assert CliRunner().invoke(play_module.main, ["play", "--minutes", "10"]).exit_code == 1
    assert played.campaigns == ["folder", "zookeeper", "quorum"]
    assert [one.campaign for one in load_runs(tmp_path / "runs.jsonl")] == played.campaigns[:2]


def a_run(campaign: str, number: int, *wrong: str) -> Run:
    verdict = Verdict(number, 60.0 * number, {"records sent": 10}, {"isolate": 2}, list(wrong), "a" * 64, 5)
    return Run(campaign, "2026-01-31", "abc", "CPython 3.11.2", 20.0, verdict)


def test_the_report_has_every_run_and_its_findings(tmp_path: Path) -> None:
    path = tmp_path / "runs.jsonl"
    runs = [a_run("quorum", 1), a_run("tiered", 2, "lost-write in t-0: #1 | it"), a_run("quorum", 3)]
    for one in runs:
        append_run(path, one)
    assert load_runs(path) == runs
    page = with_tables(f"before\n{BEGIN}earlier tables\n{END}after\n", load_runs(path))
    assert page.startswith("before\n") and page.endswith("after\n") and "earlier tables" not in page
    assert "| quorum: metadata in the brokers' own quorum" in page
    assert "| 2 | 0.07 | 20 records sent | 4 | 0 |" in page
    assert "| isolate | 6 | quorum, tiered |" in page
    assert "NILOMETER_CHAOS_SEED=2 NILOMETER_CHAOS_MINUTES=20.00 NILOMETER_CHAOS_AWAY_MINUTES=4.00" in page
    assert "lost-write in t-0: #1 \\| it |" in page
    with pytest.raises(ValueError, match="has no part"):
        with_tables("nothing", runs)


def test_the_page_shows_the_runs_that_are_kept() -> None:
    runs = load_runs(PAGE.with_name("runs.jsonl"))
    assert runs, "nothing was played"
    assert with_tables(PAGE.read_text(), runs) == PAGE.read_text()
    assert {one.campaign for one in runs} <= {one.name for one in CAMPAIGNS}
    assert all(json.loads(line) for line in PAGE.with_name("runs.jsonl").read_text().splitlines())

"""Compaction against a naive model: what is left, what is kept how long, and what every reader sees."""

from __future__ import annotations

import random

import pytest
from hypothesis import Phase, example, given
from hypothesis import strategies as st

from nilometer.wire.compression import Codec
from nilometer.wire.records import ControlType
from support.logs.compaction_scenario import RETENTION_MS, CompactionScenario, read_all
from support.logs.log_cleaner import clean_log, make_durable
from support.properties import examples

ENDS = (ControlType.ABORT, ControlType.COMMIT)
PAIRS = st.lists(
    st.tuples(
        st.sampled_from([b"a", b"b", b"c", b"d", b"e"]),
        st.one_of(st.none(), st.binary(min_size=0, max_size=60)),
    ),
    min_size=1,
    max_size=4,
)
CODECS = st.sampled_from([Codec.NONE, Codec.NONE, Codec.ZSTD, Codec.GZIP])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), PAIRS, CODECS),
        st.tuples(st.just("idempotent"), PAIRS, st.sampled_from([1, 2])),
        st.tuples(st.just("in transaction"), PAIRS, st.sampled_from([11, 12])),
        st.tuples(st.just("end"), st.sampled_from([11, 12]), st.sampled_from(ENDS)),
        st.tuples(st.just("roll")),
        st.tuples(st.just("wait"), st.sampled_from([10, RETENTION_MS])),
        st.tuples(st.just("clean"), st.sampled_from([1 << 20, 60, 120])),
        st.tuples(st.just("reopen")),
    ),
    min_size=5,
    max_size=40,
)


TOMBSTONE_ABOVE_THE_LAST_KEY_READ = [
    ("append", [(b"a", b"1"), (b"d", b"2"), (b"d", None), (b"b", None)], Codec.NONE),
    ("roll",),
    ("clean", 60),
    ("wait", RETENTION_MS),
]


@given(events=EVENTS)
@example(events=TOMBSTONE_ABOVE_THE_LAST_KEY_READ)
@examples(60, phases=(Phase.explicit, Phase.generate))  # shrinking takes minutes
def test_a_cleaned_log_is_as_the_model_has_it(events: list[tuple[object, ...]]) -> None:
    scenario = CompactionScenario()
    for event in [
        *events,
        ("roll",),
        ("clean", 1 << 20),
        ("wait", RETENTION_MS),
        ("roll",),
        ("clean", 1 << 20),
    ]:
        play(scenario, event)
    scenario.check_producers()


def play(scenario: CompactionScenario, event: tuple[object, ...]) -> None:
    scenario.now_ms += 5
    match event:
        case ("append", pairs, codec):
            scenario.append(pairs, codec=codec)  # pyright: ignore[reportArgumentType]
        case ("idempotent", pairs, producer):
            scenario.append(pairs, producer=producer)  # pyright: ignore[reportArgumentType]
        case ("in transaction", pairs, producer):
            scenario.append(pairs, producer=producer, in_transaction=True)  # pyright: ignore[reportArgumentType]
        case ("end", producer, kind):
            scenario.end_transaction(producer, kind)  # pyright: ignore[reportArgumentType]
        case ("roll",):
            scenario.roll()
        case ("wait", ms):
            scenario.now_ms += ms  # pyright: ignore[reportOperatorIssue]
        case ("clean", buffer_bytes):
            scenario.clean(buffer_bytes)  # pyright: ignore[reportArgumentType]
            scenario.check()
        case _:
            cleaned = scenario.log.cleaned_offset
            scenario.reopen().cleaned_offset = cleaned
            scenario.check()


def test_long_scenarios(seeds: int = 4) -> None:
    """Many rounds over one log, with an offset map that is too small for it."""
    for seed in range(seeds):
        chance = random.Random(seed)
        scenario = CompactionScenario()
        for _ in range(300):
            play(scenario, _draw(chance))
        scenario.check()
        scenario.check_producers()


def _draw(chance: random.Random) -> tuple[object, ...]:
    pairs = [
        (b"k%d" % chance.randrange(12), None if chance.random() < 0.2 else chance.randbytes(20))
        for _ in range(chance.randint(1, 4))
    ]
    return chance.choice(
        (
            ("append", pairs, chance.choice((Codec.NONE, Codec.ZSTD, Codec.LZ4, Codec.SNAPPY))),
            ("append", pairs, Codec.NONE),
            ("idempotent", pairs, chance.choice((1, 2, 3))),
            ("in transaction", pairs, chance.choice((11, 12))),
            ("end", chance.choice((11, 12)), chance.choice(ENDS)),
            ("wait", chance.choice((10, RETENTION_MS // 2))),
            ("clean", chance.choice((1 << 20, 150))),
            ("roll",),
        )
    )


def test_nothing_is_cleaned_while_there_is_no_whole_segment() -> None:
    scenario = CompactionScenario()
    scenario.append([(b"a", b"1")])
    scenario.append([(b"a", b"2")])
    assert not scenario.clean()
    scenario.roll()
    assert scenario.clean()
    assert [record.value for _, records in read_all(scenario.log) for record in records] == [b"2"]


@pytest.mark.parametrize("bound", ["high watermark", "open transaction", "recovery point"])
def test_nothing_is_cleaned_above_the_bounds(bound: str) -> None:
    scenario = CompactionScenario()
    for number in range(6):
        scenario.append([(b"a", b"%d" % number)])
        if number == 2 and bound == "open transaction":
            scenario.append([(b"b", b"")], producer=11, in_transaction=True)
        if number == 2 and bound == "recovery point":
            make_durable(scenario.log)
        scenario.roll()
    if bound != "recovery point":
        make_durable(scenario.log)
    watermark = scenario.log.segments.from_offset(3)[0].base_offset if bound == "high watermark" else None
    clean_log(scenario.log, wall_ms=scenario.now_ms, high_watermark=watermark)
    values = [
        record.value for _, records in read_all(scenario.log) for record in records if record.key == b"a"
    ]
    assert values[-3:] == [b"3", b"4", b"5"]
    assert b"0" not in values

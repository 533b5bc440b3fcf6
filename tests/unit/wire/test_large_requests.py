"""Large requests: decoded and encoded in slices with the same result, divided into parts and merged again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest

from nilometer.broker.api.controller_requests import CHANGE_BYTES_MAX
from nilometer.wire import messages
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.encoder import PIECES_MAX, LazySequence, encode_slices, writer
from nilometer.wire.errors import MalformedRequest
from nilometer.wire.large_requests import (
    ELEMENTS_MAX,
    ENTITY_BYTES,
    SLICE_ELEMENTS,
    Division,
    Merged,
    Repeated,
    can_decode_in_slices,
    decode_in_slices,
    divide,
    division_for,
    has_more_than,
    has_repetitions,
    is_larger_than,
)
from support.brokers.served_apis import APIS
from support.wire.random_messages import random_message

DESCRIBE_GROUPS, LIST_OFFSETS, CREATE_TOPICS, FIND_COORDINATOR = 15, 2, 19, 10
TOPIC_PARTITIONS = ("topics", "partitions")


def decoded(request_type: type[Any], body: bytes, path: tuple[str, ...] = ()) -> tuple[Any, list[int]]:
    """Return the message and the number of elements of each slice."""
    slices, sizes = decode_in_slices(request_type, body, 0, path), list[int]()
    while True:
        try:
            sizes.append(next(slices))
        except StopIteration as done:
            return done.value, sizes


def parts(message: Any, division: Division) -> Iterator[Any]:
    return (part for part, _ in divide(message, division) if part is not None)


SERVED = [
    (key, version)
    for key, spec in APIS.items()
    for version in range(spec.versions[0], spec.versions[1] + 1)
    if can_decode_in_slices(messages.api(key, version).request_type)
]


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_slices_decode_to_what_the_reader_returns(key: int, version: int) -> None:
    codec = messages.api(key, version)
    for seed in range(6):
        message = random_message(codec.request_type, random.Random(f"{key}.{version}.{seed}"), 40)
        body = codec.write_request(message)
        found, sizes = decoded(codec.request_type, body)
        assert found == codec.read_request(body) == message, seed
        assert all(size <= SLICE_ELEMENTS for size in sizes)


@pytest.mark.parametrize(("key", "version"), SERVED)
def test_wrong_bytes_are_refused_as_the_reader_refuses_them(key: int, version: int) -> None:
    codec = messages.api(key, version)
    chance = random.Random(f"{key}.{version}")
    body = codec.write_request(random_message(codec.request_type, chance, 3))
    for _ in range(60):
        wrong = bytearray(body)
        for _ in range(chance.choice((1, 2, 5))):
            if wrong:
                wrong[chance.randrange(len(wrong))] = chance.choice((0, 1, 0x7F, 0x80, 0xFF))
        changed = bytes(wrong[: chance.randint(0, len(wrong))] if chance.random() < 0.3 else wrong)
        by_reader = outcome(codec.read_request, changed)
        assert outcome(lambda body: decoded(codec.request_type, body)[0], changed) == by_reader, changed.hex()


def outcome(read: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return read(body)
    except MalformedRequest:
        return MalformedRequest


def test_a_slice_of_a_large_request_is_small_however_its_elements_are_nested() -> None:
    codec = messages.api(LIST_OFFSETS, 6)
    wide = codec.request(topics=tuple(topic(codec, f"t{number}", 1) for number in range(3_000)))
    deep = codec.request(topics=(topic(codec, "t", 3_000),))
    for message in (wide, deep):
        found, sizes = decoded(codec.request_type, codec.write_request(message), TOPIC_PARTITIONS)
        assert messages.api(LIST_OFFSETS, 6).write_request(found) == codec.write_request(message)
        assert len(sizes) > 3_000 // SLICE_ELEMENTS - 1
        assert max(sizes) <= SLICE_ELEMENTS


def test_a_request_with_too_many_elements_is_refused() -> None:
    codec = messages.api(DESCRIBE_GROUPS, 0)
    body = (ELEMENTS_MAX + 1).to_bytes(4, "big") + b"\x00\x00" * (ELEMENTS_MAX + 1)
    with pytest.raises(MalformedRequest, match=f"more than {ELEMENTS_MAX} elements"):
        decoded(codec.request_type, body)


def topic(codec: messages.Api, name: str, partitions: int, first: int = 0) -> Any:
    make = codec.make_request
    return make(
        "ListOffsetsTopic",
        name=name,
        partitions=tuple(
            make("ListOffsetsPartition", partition_index=index, current_leader_epoch=-1, timestamp=-1)
            for index in range(first, first + partitions)
        ),
    )


DIVIDED = [
    pytest.param(codec, division, id=f"{spec.key.name}-{version}")
    for spec in APIS.values()
    for version in range(spec.versions[0], spec.versions[1] + 1)
    for codec in (messages.api(int(spec.key), version),)
    for division in (division_for(spec.divisions, codec.request_type),)
    if division is not None
]


@pytest.mark.parametrize(("codec", "division"), DIVIDED)
def test_the_parts_of_a_request_have_all_its_elements_in_their_order(
    codec: messages.Api, division: Division
) -> None:
    length = 2 * division.elements_max if len(division.request) == 1 else division.elements_max + 1
    for seed in range(4):
        chance = random.Random(f"{codec}.{seed}")
        message = random_message(codec.request_type, chance, length)
        each_time = division._replace(repeated=Repeated.EACH_TIME)
        found = list(parts(message, each_time))
        assert all(not has_more_than(part, division.request, division.elements_max) for part in found)
        together = [leaf for part in found for leaf in leaves(part, division.request)]
        assert together == leaves(message, division.request)


def leaves(message: Any, path: tuple[str, ...], within: tuple[Any, ...] = ()) -> list[Any]:
    """Return the innermost elements, each with the names of what it is part of."""
    items = getattr(message, path[0]) or ()
    if len(path) == 1:
        return [(within, item) for item in items]
    names = [(getattr(item, "name", None), getattr(item, "topic_id", None)) for item in items]
    return [
        leaf
        for item, name in zip(items, names, strict=True)
        for leaf in leaves(item, path[1:], (*within, name))
    ]


def test_responses_to_parts_are_merged_where_a_part_ends_within_a_topic() -> None:
    codec = messages.api(LIST_OFFSETS, 6)
    division = Division(TOPIC_PARTITIONS, TOPIC_PARTITIONS, elements_max=7)
    request = codec.request(topics=tuple(topic(codec, f"t{number}", 10) for number in range(5)))
    merged = Merged(codec.response_type, division.response)
    for part in parts(request, division):
        for _ in merged.add(answered(codec, part)):
            pass
    assert codec.write_response(merged.message()) == codec.write_response(answered(codec, request))


def answered(codec: messages.Api, request: Any) -> Any:
    return codec.response(
        topics=tuple(
            codec.make(
                "ListOffsetsTopicResponse",
                name=one.name,
                partitions=tuple(
                    codec.make("ListOffsetsPartitionResponse", partition_index=each.partition_index, offset=9)
                    for each in one.partitions
                ),
            )
            for one in request.topics
        )
    )


def test_a_name_that_is_repeated_is_answered_twice_at_most() -> None:
    codec = messages.api(DESCRIBE_GROUPS, 6)
    request = codec.request(groups=("a", "b", "a", "c", "a", "b", "a"))
    division = Division(("groups",), ("groups",), repeated=Repeated.AT_MOST_TWICE)
    assert has_repetitions(request, division.request)
    assert [part.groups for part in parts(request, division)] == [("a", "b", "a", "c", "b")]
    assert not has_repetitions(codec.request(groups=("a", "b", "a")), division.request)


def test_ids_with_one_hash_are_told_apart_without_comparing_each_with_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client may choose them: the hash of an id is its number by a prime."""
    ids = [UUID(int=5 + (2**61 - 1) * number) for number in range(300)]
    assert len({hash(one) for one in ids}) == 1
    compared, equal = 0, UUID.__eq__

    def counted(one: UUID, other: object) -> bool:
        nonlocal compared
        compared += 1
        return equal(one, other)

    monkeypatch.setattr(UUID, "__eq__", counted)
    for key, version, entity in ((3, 12, "MetadataRequestTopic"), (20, 6, "DeleteTopicState")):
        codec = messages.api(key, version)
        topics = tuple(codec.make_request(entity, topic_id=one, name=None) for one in ids)
        request = codec.request(topics=topics)
        for division in (one for one in APIS[key].divisions if one.request == ("topics",)):
            has_repetitions(request, division.request)
            compared = 0
            found = [topic for part in parts(request, division) for topic in part.topics]
            assert len(found) == len(ids)
            assert compared <= 4 * len(ids)


def test_a_repetition_that_is_an_error_is_in_the_part_of_the_first() -> None:
    codec = messages.api(CREATE_TOPICS, 7)
    names = [f"t{number}" for number in range(200)] + ["t0"] * 500
    request = codec.request(
        topics=tuple(
            codec.make_request("CreatableTopic", name=name, num_partitions=1, replication_factor=1)
            for name in names
        )
    )
    division = APIS[CREATE_TOPICS].divisions[0]
    found = [[one.name for one in part.topics] for part in parts(request, division)]
    assert found[0][:3] == ["t0", "t0", "t1"]
    assert [name for part in found for name in part].count("t0") == 2
    assert all(len(part) <= division.elements_max + 1 for part in found)


def test_a_divided_request_gives_its_elements_up() -> None:
    codec = messages.api(DESCRIBE_GROUPS, 6)
    body = codec.write_request(codec.request(groups=tuple(f"g{number}" for number in range(1_000))))
    message, _ = decoded(codec.request_type, body, ("groups",))
    for _ in divide(message, APIS[DESCRIBE_GROUPS].divisions[0]):
        pass
    assert set(message.groups) == {None}


def test_a_large_message_is_encoded_in_slices_with_lazily_made_elements() -> None:
    codec = messages.api(FIND_COORDINATOR, 4)
    made: list[int] = []

    def coordinator(number: int) -> Any:
        made.append(number)
        return codec.make("Coordinator", key=f"{number}", node_id=number, host="h", port=number)

    response = codec.response(coordinators=LazySequence(coordinator, range(5_000)))
    slices = encode_slices(writer(codec.response_type), response)
    pieces = [next(slices)]
    assert 0 < len(made) <= PIECES_MAX, "most elements are not made yet"
    pieces += slices
    whole = codec.response(coordinators=tuple(map(coordinator, range(5_000))))
    assert b"".join(pieces) == codec.write_response(whole)
    assert len(pieces) > 10


def test_a_part_has_fewer_elements_if_their_names_are_long() -> None:
    codec = messages.api(DESCRIBE_GROUPS, 0)
    request = codec.request(groups=tuple(f"{number:03}" + "g" * 32_000 for number in range(10)))
    divided = list(parts(request, Division(("groups",), ("groups",))))
    assert [len(part.groups) for part in divided] == [1] * 10
    assert tuple(group for part in divided for group in part.groups) == request.groups


@pytest.mark.parametrize("path", [(), ("topics",)])
def test_what_is_handled_as_a_whole_has_a_bounded_number_of_elements(path: tuple[str, ...]) -> None:
    """The request or, if it is divided, each element."""
    codec = messages.api(CREATE_TOPICS, 7)

    def topic(name: str, settings: int) -> Any:
        configs = tuple(
            codec.make_request("CreatableTopicConfig", name=str(number), value="")
            for number in range(settings)
        )
        return codec.make_request(
            "CreatableTopic",
            name=name,
            num_partitions=1,
            replication_factor=1,
            assignments=(),
            configs=configs,
        )

    def decode(*settings: int) -> Any:
        topics = tuple(topic(str(number), count) for number, count in enumerate(settings))
        request = codec.request(topics=topics, timeout_ms=1, validate_only=True)
        frame = messages.encode_request(1, None, request)[4:]
        body = frame[messages.body_position(messages.decode_request_header(frame), frame) :]
        return drain(decode_in_slices(codec.request_type, body, 0, path, 100))

    assert len(decode(90, 5).topics) == 2
    with pytest.raises(MalformedRequest, match="more than 100 elements"):
        decode(101)
    if path:
        assert len(decode(90, 90).topics) == 2
    else:
        with pytest.raises(MalformedRequest, match="more than 100 elements"):
            decode(90, 90)


def drain(slices: Any) -> Any:
    while True:
        try:
            next(slices)
        except StopIteration as done:
            return done.value


def test_texts_and_entities_count_for_the_size_of_a_message_and_numbers_do_not() -> None:
    create = messages.api(ApiKey.CREATE_TOPICS, 7)

    def with_assignments(count: int, name: str = "t") -> messages.Message:
        assignments = tuple(
            create.make_request("CreatableReplicaAssignment", partition_index=index, broker_ids=(1, 2, 3))
            for index in range(count)
        )
        topic = create.make_request(
            "CreatableTopic",
            name=name,
            num_partitions=-1,
            replication_factor=-1,
            assignments=assignments,
            configs=(),
        )
        return create.request(topics=(topic,), timeout=timedelta(0), validate_only=False)

    assert not is_larger_than(with_assignments(0, "x" * 1_000), 1_000 + 2 * ENTITY_BYTES)
    assert is_larger_than(with_assignments(0, "x" * 1_000), 999 + 2 * ENTITY_BYTES)
    assert not is_larger_than(with_assignments(10_000), CHANGE_BYTES_MAX), "as many as Kafka creates"
    assert is_larger_than(with_assignments(10_000), 10_000 * ENTITY_BYTES)

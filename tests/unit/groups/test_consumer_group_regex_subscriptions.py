"""Subscriptions of a consumer group by regular expression: topics that match now and later."""

from __future__ import annotations

import pytest
from consumer_group_harness import Consumer, ConsumerWorld

from nilometer.groups import topics
from nilometer.groups.consumer import heartbeat, rebalance
from nilometer.groups.consumer.group import ConsumerGroup, Member
from nilometer.groups.consumer.rebalance import EFFORT_AT_ONCE, MATCHED_TOGETHER
from nilometer.wire.errors import ErrorCode


def test_a_regular_expression_finds_topics_now_and_later(world: ConsumerWorld) -> None:
    world.create("orders-eu", 1)
    a = Consumer(world, "A", (), regex="orders-.*")
    a.enter()
    assert a.owned == {("orders-eu", 0)}
    world.create("orders-us", 1)
    world.create("my-orders-us", 1)
    a.step()
    assert a.owned == {("orders-eu", 0), ("orders-us", 0)} and a.epoch == 3
    world.delete("orders-eu")
    world.settle_all(a)
    assert a.owned == {("orders-us", 0)}
    group = world.consumer_group()
    assert group.regexes["orders-.*"].topics == {"orders-us"}
    assert group.is_subscribed_to("orders-us") and not group.is_subscribed_to("orders-eu")


def test_names_and_a_regular_expression_together(world: ConsumerWorld) -> None:
    world.create("u", 1)
    reply = world.enter("A", "t", regex="u+")
    assert world.names(reply.assignment or ()) == {"t": [0, 1, 2, 3], "u": [0]}


def test_an_expression_that_no_member_uses_any_more_is_forgotten(world: ConsumerWorld) -> None:
    world.create("u", 1)
    world.enter("A", regex="t")
    world.enter("B", regex="t")
    world.beat("A", 2, regex="u", owned={"t": [0, 1]})
    assert set(world.consumer_group().regexes) == {"t", "u"}
    world.beat("B", -1)
    assert set(world.consumer_group().regexes) == {"u"}
    world.beat("A", world.of("A").member_epoch, regex="", topics=["t"])
    group = world.consumer_group()
    assert group.regexes == {} and group.subscribed_topics(frozenset("tu")) == {"t"}


def test_an_invalid_expression_is_refused_and_changes_nothing(world: ConsumerWorld) -> None:
    assert world.enter("A", regex="(?=t)").error_code is ErrorCode.invalid_regular_expression
    assert world.shard.groups() == []
    world.enter("A", "t")
    reply = world.beat("A", 2, regex="(")
    assert reply.error_code is ErrorCode.invalid_regular_expression and not world.written
    assert world.enter("A", regex="(x+x+)+y").error_code is ErrorCode.none


def test_a_coordinator_that_takes_over_finds_topics_created_meanwhile(world: ConsumerWorld) -> None:
    world.enter("A", regex="t.*")
    world.topics.create("t2", 1)
    world.fail_over()
    reply = world.beat("A", 2)
    assert reply.member_epoch == 3 and "t2" in world.names(reply.assignment or ())


def test_many_expressions_are_not_compiled_in_one_turn(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic is created, and each expression of a group is to be matched against its name: 300 of them took
    a turn of 270 ms."""
    count = 3 * MATCHED_TOGETHER
    epochs = {name: world.enter(name, regex=f"t{name}|new.*").member_epoch for name in map(str, range(count))}
    while world.needed:
        world.compute()
    compiled: list[str] = []
    compile_pattern = topics.compile_pattern

    def compile_and_count(text: str) -> object:
        compiled.append(text)
        return compile_pattern(text)

    monkeypatch.setattr(topics, "compile_pattern", compile_and_count)
    world.create("new", 1)
    world.beat("0", world.of("0").member_epoch)
    assert 0 < len(set(compiled)) <= EFFORT_AT_ONCE // 30
    assert len(world.needed) == 3
    world.beat("1", world.of("1").member_epoch)
    assert len(world.needed) == 3, "once"
    while world.needed:
        compiled.clear()
        world.compute()
        assert len(set(compiled)) <= MATCHED_TOGETHER
    group = world.consumer_group()
    assert {regex.topics for regex in group.regexes.values()} == {frozenset({"new"})}
    assert len(group.regexes) == len(epochs)


def test_a_group_has_a_bounded_number_of_expressions(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat, "REGEXES_MAX", 2)
    errors = [world.enter(name, regex=regex).error_code for name, regex in zip("ABCD", "tuvu", strict=True)]
    assert errors == [ErrorCode.none, ErrorCode.none, ErrorCode.group_max_size_reached, ErrorCode.none]


def test_all_expressions_of_a_group_match_a_bounded_number_of_topics(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With 900 expressions that each match 2,000 topics a heartbeat held the event loop for 400 ms."""
    monkeypatch.setattr(rebalance, "MATCHED_MAX", 5)
    monkeypatch.setattr(heartbeat, "MATCHED_MAX", 5)
    for name in ("t1", "t2", "u1", "u2"):
        world.create(name, 1)

    def matched() -> dict[str, set[str]]:
        while world.needed:
            world.compute()
        return {regex: set(found.topics) for regex, found in world.consumer_group().regexes.items()}

    world.enter("A", regex="[tu].")
    all_topics = {"t1", "t2", "u1", "u2"}
    assert matched() == {"[tu].": all_topics}
    assert world.enter("B", regex="t.").error_code is ErrorCode.none
    assert matched() == {"[tu].": all_topics, "t.": set()}, "there is no room for two more"
    world.create("t3", 1)
    world.beat("A", world.of("A").member_epoch)
    assert matched() == {"[tu].": {*all_topics, "t3"}, "t.": set()}
    assert world.enter("C", regex="u.").error_code is ErrorCode.group_max_size_reached
    assert world.enter("D", regex="t.").error_code is ErrorCode.none, "it is known"
    for name in ("u1", "u2"):
        world.topics.delete(name)
    world.see_image(world.topics.image)
    world.beat("A", world.of("A").member_epoch)
    assert world.enter("C", regex="u.").error_code is ErrorCode.none
    assert matched()["[tu]."] == {"t1", "t2", "t3"}
    world.fail_over()
    assert world.consumer_group().matched_count == sum(map(len, matched().values()))


def test_the_only_expression_of_a_group_may_match_all_topics(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance, "MATCHED_MAX", 1)
    world.create("t2", 1)
    world.enter("A", regex="t.*")
    assert world.consumer_group().regexes["t.*"].topics == {"t", "t2"}


def test_whether_topics_are_read_is_found_once_for_all(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Offsets of thousands of topics expire, or are deleted, of a group of thousands of members."""
    world.enter("A", "t")
    world.enter("B", regex="u.*")
    group, asked = world.consumer_group(), list[str]()
    topics_of = type(group).topics_of

    def count(self: ConsumerGroup, member: Member) -> frozenset[str]:
        asked.append(member.member_id)
        return topics_of(self, member)

    monkeypatch.setattr(ConsumerGroup, "topics_of", count)
    found = [name for name in ("t", "u", "v", *map(str, range(100))) if group.is_subscribed_to(name)]
    assert (found, group.subscribed_topics(frozenset("tuv")), asked) == (["t"], {"t"}, [])


def test_what_members_name_is_counted_as_they_come_change_and_go(world: ConsumerWorld) -> None:
    for name in "uv":
        world.create(name, 1)
    world.enter("A", "t", "u", regex="v")
    world.enter("B", "u")
    group, existing = world.consumer_group(), frozenset("tuvw")
    assert group.subscribed_topics(existing) == {"t", "u", "v"}
    world.beat("A", world.of("A").member_epoch, topics=["t"], regex="")
    assert group.subscribed_topics(existing) == {"t", "u"} and not group.subscribed_regexes()
    world.beat("B", -1)
    assert group.subscribed_topics(existing) == {"t"}


def test_an_assignment_of_many_names_is_computed_outside(
    world: ConsumerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rebalance, "NAMED_AT_ONCE_MAX", 2)
    world.enter("A", "t", "absent", "more")
    assert len(world.needed) == 1
    world.compute()
    assert world.target("A") == {"t": [0, 1, 2, 3]}

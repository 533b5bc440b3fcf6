"""Clients take turns by what their requests cost; none waits for more than a quantum of each other one."""

from __future__ import annotations

from collections import Counter, deque

from hypothesis import given
from hypothesis import strategies as st

from nilometer.broker.fair_queue import COST_US_MIN, QUANTUM_US, FairQueue

Item = tuple[str, str, int]  # client, client id, cost
costs = st.integers(min_value=0, max_value=3 * QUANTUM_US)
items = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xyz"), costs), max_size=60)


def take(queue: FairQueue[Item]) -> Item:
    item = queue.take()
    queue.charge(item[2])
    return item


@given(items, st.integers(min_value=0, max_value=60))
def test_each_item_is_taken_once_and_those_of_one_client_id_in_order(added: list[Item], taken: int) -> None:
    """Some are taken before all have come."""
    queue, waiting = FairQueue[Item](), dict[tuple[str, str], deque[Item]]()
    for number, item in enumerate(added):
        queue.add(item[0], item[1], item)
        waiting.setdefault(item[:2], deque()).append(item)
        if number < taken and number % 2:
            got = take(queue)
            assert got is waiting[got[:2]].popleft()
    while queue:
        got = take(queue)
        assert got is waiting[got[:2]].popleft()
    assert not any(waiting.values())


@given(items, st.integers(min_value=0, max_value=60))
def test_a_client_that_joins_waits_for_a_quantum_and_an_item_of_each_other(
    added: list[Item], taken: int
) -> None:
    queue = FairQueue[Item]()
    for item in added:
        queue.add(item[0], item[1], item)
    for _ in range(min(taken, len(added))):
        take(queue)
    queue.add("late", "id", ("late", "id", 1))
    cost, longest = Counter[str](), Counter[str]()
    while (got := take(queue))[0] != "late":
        spent = max(got[2], COST_US_MIN)
        cost[got[0]] += spent
        longest[got[0]] = max(longest[got[0]], spent)
    assert all(cost[client] <= QUANTUM_US + longest[client] for client in cost)


@given(st.integers(min_value=1, max_value=50), st.integers(min_value=1, max_value=2 * QUANTUM_US))
def test_many_client_ids_gain_nothing_for_a_client(names: int, cost: int) -> None:
    """While both have something waiting, each of two clients gets the same time."""
    queue = FairQueue[Item]()
    for number in range(400):
        queue.add("crowd", f"id-{number % names}", ("crowd", "", cost))
        queue.add("single", "id", ("single", "", cost))
    spent = Counter[str]()
    for _ in range(400):
        spent[take(queue)[0]] += max(cost, COST_US_MIN)
    assert abs(spent["crowd"] - spent["single"]) <= 2 * (QUANTUM_US + max(cost, COST_US_MIN))


def test_client_ids_of_one_client_take_turns() -> None:
    queue = FairQueue[Item]()
    for _ in range(1_000):
        queue.add("host", "crowd", ("host", "crowd", QUANTUM_US // 4))
    queue.add("host", "neighbour", ("host", "neighbour", 1))
    before = 0
    while take(queue)[1] != "neighbour":
        before += 1
    assert before == 4


def test_what_an_expensive_request_cost_is_paid_back() -> None:
    queue = FairQueue[Item]()
    for _ in range(20):
        queue.add("expensive", "id", ("expensive", "", 5 * QUANTUM_US))
        queue.add("cheap", "id", ("cheap", "", QUANTUM_US))
    taken = [take(queue)[0] for _ in range(18)]
    assert taken.count("expensive") <= 4

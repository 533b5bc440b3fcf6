"""The account: each record counted once, in a batch, in all batches, and in what came after one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nilometer.pipeline.account import (
    FATES,
    OTHER_REASONS,
    REASONS_MAX,
    Account,
    Unbalanced,
    account_of,
    accounts_since,
    joined_accounts,
)

FATE = st.sampled_from([*FATES, "open"])


def batch(became: list[str], open_before: int, closed: int) -> Account:
    """An account of a batch that reads as many records as ``became``, and closes open ones."""
    found = Account(len(became), open_before, open_before - closed)
    found.add("results", "closed", closed)
    for fate in became:
        if fate == "open":
            found.open += 1
        else:
            found.add(fate, f"{fate} it is")
    return found


@given(st.lists(st.lists(FATE, max_size=9), max_size=6), st.data())
def test_all_batches_together_balance_and_so_does_what_came_after_any_of_them(batches, data):
    total: dict[str, Account] = {}
    seen = [total]
    for one in batches:
        before = total["in"].open if total else 0
        closed = data.draw(st.integers(0, before))
        account = batch(one, before, closed)
        account.check("in")
        total = joined_accounts(total, {"in": account})
        seen.append(total)
    if not total:
        return
    total["in"].check("in")
    assert total["in"].read == sum(map(len, batches))
    assert total["in"].of("late") == sum(one.count("late") for one in batches)
    assert account_of(json.loads(json.dumps(total["in"].to_json()))) == total["in"]
    number = data.draw(st.integers(0, len(batches)))
    after = accounts_since(seen[number], total)["in"]
    after.check("in")
    assert after.read == sum(map(len, batches[number:]))


def test_a_record_that_is_missing_or_counted_twice_is_an_error_with_the_numbers():
    account = Account(read=5)
    account.add("results", "in a table", 3)
    account.add("rejected", "no JSON")
    with pytest.raises(Unbalanced, match=r"0 open before and 5 read, but 3 in the results \+ 1 rejected"):
        account.check("orders")
    account.open = 2
    with pytest.raises(Unbalanced, match="2 still open"):
        account.check("orders")
    account.open = 1
    account.check("orders")


def test_reasons_without_number_are_bounded():
    account = Account(read=2 * REASONS_MAX)
    for number in range(2 * REASONS_MAX):
        account.add("rejected", f"reason {number}")
    assert len(account.became["rejected"]) == REASONS_MAX + 1
    assert account.became["rejected"][OTHER_REASONS] == REASONS_MAX
    account.check("orders")

"""The account of a pipeline: what became of each record that was read, each counted once. Pure.

Of each input, in each batch and in all batches together:

    open before + read = in the results + rejected + late + repeated + left out + still open

*Rejected* records went to the topic of dead letters, *late* ones came after the result of their time was
written, *repeated* ones (also: superseded) are in the results already, and *left out* are those that no
result has by design, such as an empty line. Each number has its reason. *Still open* are records whose result
later input may change; the run has them in its state.

Invariant: an account that does not balance is an error, and is not written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, cast, get_args

from nilometer.pipeline.errors import PipelineError

Fate = Literal["results", "rejected", "late", "repeated", "left out"]
FATES: Final[tuple[Fate, ...]] = get_args(Fate)
REASONS_MAX: Final = 50
"""The number of reasons of one fate; further ones are counted as one."""
OTHER_REASONS: Final = "other reasons"
_SAID: Final = {"results": "in the results"}


class Unbalanced(PipelineError):
    """Records are missing from an account, or are counted twice: an error in the pipeline."""


@dataclass(slots=True)
class Account:
    """What became of the records of one input."""

    read: int = 0
    open_before: int = 0
    open: int = 0
    became: dict[Fate, dict[str, int]] = field(default_factory=dict[Fate, dict[str, int]])
    """The number of records by fate and reason."""

    def add(self, fate: Fate, reason: str, records: int = 1) -> None:
        reasons = self.became.setdefault(fate, {})
        if reason not in reasons and len(reasons) >= REASONS_MAX:
            reason = OTHER_REASONS
        if records:
            reasons[reason] = reasons.get(reason, 0) + records

    def of(self, fate: Fate) -> int:
        return sum(self.became.get(fate, {}).values())

    @property
    def rejected_share(self) -> float:
        """The share of the records read; 0 if there are none."""
        return self.of("rejected") / self.read if self.read else 0.0

    def check(self, name: str) -> None:
        """Raise Unbalanced, with the numbers, unless every record is counted once."""
        there = sum(map(self.of, FATES)) + self.open
        if there != self.open_before + self.read:
            raise Unbalanced(
                f"the account of {name} does not balance: {self.open_before:,} open before and "
                f"{self.read:,} read, but {self.text()}. Nothing of this batch counts as done"
            )

    def then(self, later: Account) -> Account:
        """Return the account of this and of what came after it."""
        return self._with(later, 1, open_before=self.open_before, still_open=later.open)

    def since(self, earlier: Account) -> Account:
        """Return the account of what came after ``earlier``, which this account includes."""
        return self._with(earlier, -1, open_before=earlier.open, still_open=self.open)

    def _with(self, other: Account, sign: int, *, open_before: int, still_open: int) -> Account:
        found = Account(self.read + sign * other.read, open_before, still_open)
        for fate in FATES:
            mine, others = self.became.get(fate, {}), other.became.get(fate, {})
            for reason in [*mine, *(one for one in others if one not in mine)]:
                found.add(fate, reason, mine.get(reason, 0) + sign * others.get(reason, 0))
        return found

    def text(self) -> str:
        """Return the numbers as a sum, without those that are 0."""
        parts = [(_SAID.get(fate, fate), self.of(fate)) for fate in FATES]
        found = [f"{number:,} {what}" for what, number in [*parts, ("still open", self.open)] if number]
        return " + ".join(found) or "0 in the results"

    def lines(self, name: str) -> list[str]:
        """Return the account for people: a line of numbers, and one of reasons for each fate."""
        before = f"{self.open_before:,} open before + " if self.open_before else ""
        found = [f"{name}: {before}{self.read:,} read = {self.text()}"]
        for fate in FATES:
            reasons = sorted(self.became.get(fate, {}).items(), key=lambda one: (-one[1], one[0]))
            if reasons and (fate != "results" or len(reasons) > 1):
                said = "; ".join(f"{records:,} {reason}" for reason, records in reasons)
                found.append(f"  {_SAID.get(fate, fate)}: {said}")
        return found

    def to_json(self) -> dict[str, Any]:
        return {
            "read": self.read,
            "open_before": self.open_before,
            **{fate.replace(" ", "_"): self.of(fate) for fate in FATES},
            "open": self.open,
            "reasons": {fate: dict(reasons) for fate, reasons in self.became.items() if reasons},
        }


Accounts = Mapping[str, Account]
"""The accounts of a run by input."""


def account_of(said: Mapping[str, Any]) -> Account:
    """Return the account that :meth:`Account.to_json` wrote."""
    found = Account(said["read"], said["open_before"], said["open"])
    for fate, reasons in cast("dict[Fate, dict[str, int]]", said["reasons"]).items():
        found.became[fate] = dict(reasons)
    return found


def accounts_of(said: Mapping[str, Any]) -> dict[str, Account]:
    return {name: account_of(one) for name, one in said.items()}


def accounts_json(accounts: Accounts) -> dict[str, Any]:
    return {name: one.to_json() for name, one in accounts.items()}


def joined_accounts(earlier: Accounts, later: Accounts) -> dict[str, Account]:
    """Return the accounts of both; ``later`` follows ``earlier``."""
    return {
        name: earlier.get(name, Account()).then(later[name]) if name in later else earlier[name]
        for name in [*earlier, *(one for one in later if one not in earlier)]
    }


def accounts_since(earlier: Accounts, all_of: Accounts) -> dict[str, Account]:
    """Return the accounts of what came after ``earlier``, which ``all_of`` include."""
    return {name: one.since(earlier.get(name, Account())) for name, one in all_of.items()}

"""One probe: a request about resources that exist and that do not, and what of its answer is compared."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from nilometer.wire.api_keys import ApiKey

from ..brokers.two_brokers import Plain

NO_ID = UUID(int=0xDEAD << 64 | 0xBEEF)
"""An id that no topic has."""


def _same(answer: Plain) -> Plain:
    return answer


@dataclass(frozen=True, slots=True)
class Probe:
    key: ApiKey
    version: int
    name: str
    fields: Callable[[Names], Mapping[str, object]]
    compared: Callable[[Plain], Plain] = _same
    """Leaves out what differs between any two brokers."""


@dataclass(frozen=True, slots=True)
class Names:
    """The names and ids of one profile's resources, on one broker."""

    prefix: str
    ids: Mapping[str, UUID] = field(default_factory=dict[str, UUID])

    @property
    def known(self) -> str:
        return f"{self.prefix}known"

    @property
    def missing(self) -> str:
        return f"{self.prefix}missing"

    @property
    def both(self) -> tuple[str, str]:
        return self.known, self.missing

    @property
    def both_ids(self) -> tuple[UUID, UUID]:
        return self.ids[self.known], NO_ID


# ── what is compared ────────────────────────────────────────────────────────────────────────────────
def of_profile(answer: Plain) -> Plain:
    """Keep the topics and groups that probes use: the sides have other ones too."""
    kept = dict(answer)
    for place, name in (
        ("topics", "name"),
        ("groups", "group_id"),
        ("transaction_states", "transactional_id"),
        ("config_resources", "resource_name"),
    ):
        if place in kept:
            kept[place] = [
                each
                for each in kept[place]
                if each[name] is None or (each[name].startswith("p") and "deletable" not in each[name])
                if not each[name] or not each[name].endswith("auto")
            ]
    return kept


def only_error(answer: Plain) -> Plain:
    return answer["error_code"] if isinstance(answer, dict) else answer


def is_denied(answer: Plain) -> Plain:
    """The settings themselves are those of this broker."""
    return [each["error_code"] == "cluster_authorization_failed" for each in answer["responses"]]


def without_configs(answer: Plain) -> Plain:
    """A topic's default settings are those of the broker; how many are shown depends on the rights."""
    return [{**each, "configs": bool(each["configs"])} for each in answer["topics"]]


def without_aborted(answer: Plain) -> Plain:
    """To a reader of uncommitted records no list of aborted transactions is an empty one."""
    for topic in answer["responses"]:
        for partition in topic["partitions"]:
            partition["aborted_transactions"] = partition["aborted_transactions"] or []
    return answer


def without_loggers(answer: Plain) -> Plain:
    """Each broker has its own loggers; of their resource the error is compared."""
    if not isinstance(answer, dict):
        return answer
    return [
        {name: each[name] for name in ("resource_type", "resource_name", "error_code")}
        for each in answer["results"]
    ]

"""Which quota counts for a client, compared with the order that Kafka documents."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nilometer.quotas import CLIENT_ID, IP, USER, Limit, Limits, QuotaEntity, canonical_address, entity_of

NAMES = ("a", "b", None)
"""Names of users and client ids; None is the default."""
_ABSENT = object()
PARTS = st.sampled_from((*NAMES, _ABSENT))


def entity(user: object, client: object) -> QuotaEntity:
    named = {USER: user, CLIENT_ID: client}
    return entity_of({kind: name for kind, name in named.items() if name is not _ABSENT})  # type: ignore[misc]


def plain(quotas: dict[QuotaEntity, float], user: str, client: str) -> Limit | None:
    """The order of KIP-55, written as its table."""
    table = [
        (entity(user, client), (user, client)),
        (entity(user, None), (user, client)),
        (entity(user, _ABSENT), (user, "")),
        (entity(None, client), (user, client)),
        (entity(None, None), (user, client)),
        (entity(None, _ABSENT), (user, "")),
        (entity(_ABSENT, client), ("", client)),
        (entity(_ABSENT, None), ("", client)),
    ]
    return next((Limit(shared, quotas[key]) for key, shared in table if key in quotas), None)


@given(
    st.dictionaries(st.builds(entity, PARTS, PARTS).filter(bool), st.floats(1, 100)),
    st.sampled_from(("a", "b", "c")),
    st.sampled_from(("a", "b", "c")),
)
def test_the_most_specific_quota_counts(quotas: dict[QuotaEntity, float], user: str, client: str) -> None:
    limits = Limits()
    for each, rate in quotas.items():
        limits.put(each, rate)
    assert limits.of_client(user, client) == plain(quotas, user, client)
    assert bool(limits) == bool(quotas)


def test_an_empty_client_id_has_only_its_users_quota() -> None:
    limits = Limits()
    limits.put(entity(_ABSENT, None), 1)
    limits.put(entity("a", None), 2)
    assert limits.of_client("a", "") is None
    limits.put(entity(None, _ABSENT), 3)
    assert limits.of_client("a", "") == Limit(("a", ""), 3)


def test_an_address_has_its_own_quota_or_the_default() -> None:
    limits = Limits()
    limits.put(entity_of({IP: "127.0.0.1"}), 5)
    assert (
        limits.of_address("127.0.0.1") == limits.of_address("::ffff:127.0.0.1") == Limit(("127.0.0.1", ""), 5)
    )
    assert limits.of_address("127.0.0.2") is None
    limits.put(entity_of({IP: None}), 7)
    assert limits.of_address("127.0.0.2") == Limit(("127.0.0.2", ""), 7)
    assert limits.of_client("127.0.0.1", "x") is None


def test_addresses_have_one_form() -> None:
    assert canonical_address("0:0::1") == canonical_address("::1") == "::1"
    assert canonical_address("somewhere") is None

"""AlterUserScramCredentials: setting and deleting the SCRAM credentials of users (KIP-554)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec

from nilometer.cluster.controller.decision import OK, Decision, Outcome, Refusal
from nilometer.cluster.image import ClusterImage
from nilometer.cluster.records import Record, ScramCredentialChanged
from nilometer.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism, credential_of
from nilometer.wire.errors import ErrorCode


class ScramDeletion(msgspec.Struct, frozen=True):
    user: str
    mechanism: int
    """The mechanism's number in Kafka's requests."""


@dataclass(frozen=True, slots=True)
class ScramUpsertion:
    user: str
    mechanism: int
    iterations: int
    salt: bytes = field(repr=False)
    salted_password: bytes = field(repr=False)


ScramAlteration = ScramDeletion | ScramUpsertion
ALTERED_TWICE = "A user credential cannot be altered twice in the same request"


def decide_alter_scram_credentials(
    image: ClusterImage, alterations: Sequence[ScramAlteration]
) -> Decision[dict[str, Outcome]]:
    """Decide the alterations in order; the reply has the outcome of each user, errors last.

    As in Kafka, a user is altered once in a request, also if the mechanisms differ: DUPLICATE_RESOURCE.
    """
    records: dict[str, Record] = {}
    errors: dict[str, Outcome] = {}
    for alteration in alterations:
        user = alteration.user
        if user in errors:
            continue
        try:
            if records.pop(user, None) is not None:
                raise Refusal(ErrorCode.duplicate_resource, ALTERED_TWICE)
            records[user] = _record(image, alteration)
        except Refusal as refusal:
            errors[user] = refusal.outcome
    outcomes = dict.fromkeys(records, OK) | {user: errors[user] for user in sorted(errors)}
    return Decision(tuple((record,) for record in records.values()), outcomes)


def _record(image: ClusterImage, alteration: ScramAlteration) -> ScramCredentialChanged:
    if not alteration.user:
        raise Refusal(ErrorCode.unacceptable_credential, "Username must not be empty")
    mechanism = ScramMechanism.numbered(alteration.mechanism)
    if mechanism is None:
        raise Refusal(ErrorCode.unsupported_sasl_mechanism, "Unknown SCRAM mechanism")
    if isinstance(alteration, ScramDeletion):
        if mechanism not in image.scram_users.of(alteration.user):
            raise Refusal(
                ErrorCode.resource_not_found, "Attempt to delete a user credential that does not exist"
            )
        return ScramCredentialChanged(user=alteration.user, mechanism=mechanism)
    _check(alteration)
    credential = credential_of(mechanism, alteration.salted_password, alteration.salt, alteration.iterations)
    return ScramCredentialChanged(user=alteration.user, mechanism=mechanism, credential=credential)


def _check(upsertion: ScramUpsertion) -> None:
    if upsertion.iterations < ITERATIONS_MIN:
        raise Refusal(
            ErrorCode.unacceptable_credential, f"Too few iterations; the minimum is {ITERATIONS_MIN}"
        )
    if upsertion.iterations > ITERATIONS_MAX:
        raise Refusal(
            ErrorCode.unacceptable_credential, f"Too many iterations; the maximum is {ITERATIONS_MAX}"
        )
    if not upsertion.salt or not upsertion.salted_password:
        raise Refusal(ErrorCode.unacceptable_credential, "The salt and the salted password must not be empty")

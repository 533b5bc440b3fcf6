"""Faults of authorization: what users may not do is served, or what they may do is refused."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs
from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.api import controller_requests
from nilometer.broker.api.spec import ApiSpec, Request
from nilometer.broker.authorizer import AclAccess, Authorizer
from nilometer.cluster import acl_table
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.simulation.plan import Kind


def prefer_allowances(patch: Patch) -> None:
    patch.setattr(acl_table, "_DENYING_BITS", tuple(0 for _ in Operation))


def forget_who_asked(patch: Patch) -> None:
    inner = controller_requests._inner

    def of_the_broker(carried: Mapping[int, ApiSpec], request: Request) -> tuple[ApiSpec, Request]:
        spec, forwarded = inner(carried, request)
        return spec, structs.replace(forwarded, context=request.context)

    patch.setattr(controller_requests, "_inner", of_the_broker)


def serve_every_reader(patch: Patch) -> None:
    allows = AclAccess.allows

    def but_for_reading(
        self: AclAccess, operation: Operation, kind: ResourceType, name: str, *, report: bool = True
    ) -> bool:
        return operation is Operation.READ or allows(self, operation, kind, name, report=report)

    patch.setattr(AclAccess, "allows", but_for_reading)


def keep_old_rights(patch: Patch) -> None:
    patch.setattr(Authorizer, "_on_delta", lambda self, delta, image: None)


FAULTS = (
    PlantedFault(
        name="prefer-allowances",
        what="an ACL that allows prevails over one that denies",
        plant=prefer_allowances,
        kinds=(Kind.CRASH,),
        seeds=3,
        rights=True,
    ),
    PlantedFault(
        name="forget-who-asked",
        what="the controller decides a forwarded request by the rights of the broker that forwarded it",
        plant=forget_who_asked,
        kinds=(Kind.CRASH,),
        seeds=3,
        rights=True,
    ),
    PlantedFault(
        name="serve-every-reader",
        what="a fetch is served without the right to read",
        plant=serve_every_reader,
        kinds=(Kind.RESET,),
        seeds=3,
        rights=True,
    ),
    PlantedFault(
        name="keep-old-rights",
        what="a fetch session does not notice that ACLs have changed",
        plant=keep_old_rights,
        kinds=(Kind.CRASH,),
        seeds=30,
        rights=True,
    ),
)

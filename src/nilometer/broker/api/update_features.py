"""UpdateFeatures: raise or lower finalized levels of features (KIP-584, KIP-1022).

Versions: 0 can only raise levels (its ``allow_downgrade`` has no effect, as in Kafka); 1 has the type of each
update (upgrade, safe or unsafe downgrade), and ``validate_only``; 2 has one outcome for the whole request.
"""

from __future__ import annotations

import asyncio

from nilometer.broker.api.controller_requests import on_controller
from nilometer.broker.api.spec import ApiSpec, Request, Right
from nilometer.broker.connection import Reply
from nilometer.broker.services import Services
from nilometer.cluster.acl import Operation, ResourceType
from nilometer.cluster.controller.decision import Decision, Outcome
from nilometer.cluster.controller.features import FeatureUpdate, UpgradeType, decide_update_features
from nilometer.cluster.image import ClusterImage
from nilometer.wire.api_keys import ApiKey
from nilometer.wire.errors import ErrorCode

FIRST_WITHOUT_RESULTS = 2


def handle(services: Services, request: Request) -> asyncio.Future[Reply]:
    updates = [
        FeatureUpdate(
            update.feature,
            update.max_version_level,
            getattr(update, "upgrade_type", int(UpgradeType.UPGRADE)),
        )
        for update in request.body.feature_updates
    ]
    validate_only: bool = request.field("validate_only", False)

    def decide(image: ClusterImage) -> Decision[Outcome]:
        return decide_update_features(image, updates, validate_only=validate_only)

    return on_controller(services, request, decide, _respond, _refuse, needs=Operation.ALTER)


def _respond(services: Services, request: Request, outcome: Outcome) -> Reply:
    results: dict[str, object] = {}
    if request.version < FIRST_WITHOUT_RESULTS:
        updates = request.body.feature_updates if outcome.ok else ()
        results["results"] = tuple(
            request.make(
                "UpdatableFeatureResult",
                feature=update.feature,
                error_code=ErrorCode.none,
                error_message=None,
            )
            for update in updates
        )
    return request.respond(
        throttle_time_ms=0, error_code=outcome.error, error_message=outcome.message, **results
    )


def _refuse(services: Services, request: Request, error: ErrorCode, message: str) -> Reply:
    return _respond(services, request, Outcome(error, message))


API = ApiSpec(
    key=ApiKey.UPDATE_FEATURES,
    versions=(0, 2),
    handle=handle,
    forwardable=True,
    rights=(Right(Operation.ALTER, ResourceType.CLUSTER),),
)

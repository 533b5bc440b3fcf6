"""Faults of how an administrator's requests are served: settings judged, large requests divided."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from planted_faults.planting import Patch, PlantedFault

from nilometer.broker.replicas.hosted_logs import LogConfigs
from nilometer.broker.turns import LongWork
from nilometer.cluster.controller import configs
from nilometer.cluster.image import ClusterImage
from nilometer.config import ConfigDefinition, ConfigError
from nilometer.simulation.fault_kinds import Kind
from nilometer.storage.topic_config import LogConfig


def judge_settings_key_by_key(patch: Patch) -> None:
    def parse_each(image: Any, definition: ConfigDefinition, inherited_of: Any, texts: Any) -> None:
        try:
            definition.parse(texts)
        except ConfigError as error:
            raise configs.Refusal(configs.ErrorCode.invalid_config, str(error)) from error

    def or_fail(
        self: LogConfigs, image: ClusterImage, topic: str, topic_id: UUID, texts: Mapping[str, str]
    ) -> LogConfig:
        return LogConfig.parse(texts, self._inherited(image))

    patch.setattr(configs, "check_topic_settings", parse_each)
    patch.setattr(configs, "check_together", lambda *_: None)
    patch.setattr(LogConfigs, "of", or_fail)


def serve_large_requests_in_one_piece(patch: Patch) -> None:
    patch.setattr(LongWork, "is_slice_over", False)


FAULTS = (
    PlantedFault(
        name="judge-settings-key-by-key",
        what="settings that contradict each other are accepted, and refused by the logs",
        plant=judge_settings_key_by_key,
        kinds=(Kind.RESET,),
        seeds=20,
        administers=True,
    ),
    PlantedFault(
        name="serve-large-requests-in-one-piece",
        what="a large request holds the event loop from its decoding to its response",
        plant=serve_large_requests_in_one_piece,
        kinds=(Kind.RESET,),
        seeds=20,
        administers=True,
    ),
)

"""All faults that are planted. Each is small, and of a kind that has been made in practice."""

from __future__ import annotations

from planted_faults import (
    authentication_faults,
    client_faults,
    compaction_faults,
    disk_error_faults,
    ensemble_faults,
    folder_faults,
    lookup_faults,
    metadata_faults,
    periodic_task_faults,
    quorum_faults,
    recorder_faults,
    replication_faults,
    rights_faults,
    settings_faults,
    share_faults,
    storage_faults,
    tier_faults,
    transaction_faults,
)
from planted_faults.planting import PlantedFault

FAULTS: tuple[PlantedFault, ...] = (
    *storage_faults.FAULTS,
    *replication_faults.FAULTS,
    *metadata_faults.FAULTS,
    *settings_faults.FAULTS,
    *lookup_faults.FAULTS,
    *folder_faults.FAULTS,
    *disk_error_faults.FAULTS,
    *client_faults.FAULTS,
    *periodic_task_faults.FAULTS,
    *authentication_faults.FAULTS,
    *rights_faults.FAULTS,
    *ensemble_faults.FAULTS,
    *quorum_faults.FAULTS,
    *compaction_faults.FAULTS,
    *transaction_faults.FAULTS,
    *share_faults.FAULTS,
    *tier_faults.FAULTS,
    *recorder_faults.FAULTS,
)
BY_NAME = {fault.name: fault for fault in FAULTS}

"""Makes clients of the cluster that ``--bootstrap-server`` names, by the settings of ``--command-config``."""

from __future__ import annotations

from nilometer.cli.cluster_options import COMMON_CONFIG, client_config
from nilometer.client.admin.admin import Admin
from nilometer.client.replicas.replica_survey import DEFAULT_TIMEOUT_MS, ReplicaSurvey
from nilometer.client.settings.client_security import client_security
from nilometer.client.settings.client_settings import ClientSettings
from nilometer.runtime import Runtime


def admin_of(bootstrap: str) -> Admin:
    return Admin(Runtime.system(), client_config(bootstrap))


def survey_of(bootstrap: str, timeout_ms: int = DEFAULT_TIMEOUT_MS) -> ReplicaSurvey:
    """``timeout_ms``: how long each broker gets to respond."""
    settings = ClientSettings(COMMON_CONFIG, client_config(bootstrap))
    return ReplicaSurvey(Runtime.system(), bootstrap.split(","), timeout_ms, client_security(settings))

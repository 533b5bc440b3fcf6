"""Makes clients of the cluster that ``--bootstrap-server`` names, with default settings."""

from __future__ import annotations

from nilometer.client.admin.admin import Admin
from nilometer.client.replicas.replica_survey import ReplicaSurvey
from nilometer.runtime import Runtime


def admin_of(bootstrap: str) -> Admin:
    return Admin(Runtime.system(), {"bootstrap.servers": bootstrap})


def survey_of(bootstrap: str) -> ReplicaSurvey:
    return ReplicaSurvey(Runtime.system(), bootstrap.split(","))

"""A small-scope model check of the replication core: the product's own code, in every order of events.

:class:`World` (:mod:`world`) is a model of two or three broker processes with the real
:class:`~nilometer.replication.Replica`, a log of (epoch, value), a controller and a network that delays,
loses and repeats messages. :func:`explore` (:mod:`explorer`) visits every reachable state, breadth first, so
that it finds a shortest counterexample; :mod:`properties` checks each state. :class:`SettingsWorld`
(:mod:`settings_world`) is a separate model, of the settings of topics and brokers.
"""

from nilometer.simulation.model_check.controller import (
    ClusterController,
    Controller,
    SmallController,
    SmallImage,
)
from nilometer.simulation.model_check.explorer import (
    Exploration,
    Progress,
    Violation,
    explore,
    loss,
    violation,
)
from nilometer.simulation.model_check.process import ModelLog
from nilometer.simulation.model_check.settings import SettingsBounds, SettingsWorld, settings_violation
from nilometer.simulation.model_check.tables import Bounds, View
from nilometer.simulation.model_check.world import State, Step, World

__all__ = [
    "Bounds",
    "ClusterController",
    "Controller",
    "Exploration",
    "ModelLog",
    "Progress",
    "SettingsBounds",
    "SettingsWorld",
    "SmallController",
    "SmallImage",
    "State",
    "Step",
    "View",
    "Violation",
    "World",
    "explore",
    "loss",
    "settings_violation",
    "violation",
]

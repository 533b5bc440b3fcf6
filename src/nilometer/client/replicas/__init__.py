"""Surveys of replicas, leader elections, and reassignments with their throttle."""

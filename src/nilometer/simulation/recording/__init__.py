"""Recordings of simulations and scenarios: what happened, and each replica's state at every moment."""

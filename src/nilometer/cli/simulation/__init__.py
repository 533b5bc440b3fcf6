"""Commands for simulated clusters, the model check, and the scenarios of replication."""

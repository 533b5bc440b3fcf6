"""Commands for brokers on this machine, and for the cluster's metadata log and secret."""

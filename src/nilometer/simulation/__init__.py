"""A virtual world in which the same broker code runs: clock, network and disk driven by one seed."""

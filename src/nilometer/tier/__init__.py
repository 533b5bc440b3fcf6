"""The tier: sealed segments of a partition in an object store, and the chain of manifests that names them."""

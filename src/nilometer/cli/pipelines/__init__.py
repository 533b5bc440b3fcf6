"""Commands that use Spark: the shipped pipelines, the user's own jobs, the audit of replicas."""

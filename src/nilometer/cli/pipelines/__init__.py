"""What runs on Spark: the shipped pipelines, jobs of one's own, the audit of replicas."""

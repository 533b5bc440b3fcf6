"""A cluster's health: `health_check` asks the brokers, `cluster_health` judges what they reported."""

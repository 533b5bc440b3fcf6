"""What principals may do: Kafka's StandardAuthorizer over the ACLs in the metadata, and its audit log."""

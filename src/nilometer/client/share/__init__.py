"""The member of a share group (KIP-932): its heartbeats, its sessions with brokers, its acknowledgements."""

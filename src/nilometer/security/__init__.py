"""Who a peer is, and how it proves that: principals, security protocols. Pure: no sockets, no clock."""

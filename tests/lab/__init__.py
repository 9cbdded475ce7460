"""Several real hosts on one machine: what the launcher does over a network, without a cloud."""

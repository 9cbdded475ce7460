"""Sums over all ranks from messages between pairs of them, the same bits on every rank.

With S the bytes of the vector, n ranks, B the bandwidth of a worker and L the one-way latency:

one_shot    L + (n−1)·S/B            everything to everybody at once
two_shot    2·L + 2·(n−1)/n·S/B      each rank sums a part and tells the others
ring        2·(n−1)·(L + S/(n·B))    the same traffic, between neighbours only
two_level   L + 2·l + …              two-shot inside a site, one-shot between sites

They only use a `mailbox.Mailbox`; `call.Call` holds what they have in common.
"""

"""Training without a master: rules for who sends what to whom, and how it is applied.

Pure NumPy over flat vectors, without sockets, threads or clocks: the same objects train inside
workers and in a simulation. `dlion.Dlion` is the launcher's own rule; `gaia.Gaia`, `ako.Ako`
and `hop.Hop` are there to be compared with. Rules and sources: docs/decentralized.md.
"""

"""The constants of the prior, in one place."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Constants:
    """Constants of the prior; see docs/policy.md for how each was found.

    The exchange constants are a least-squares fit to the 18 cells of two and four workers of
    policies/data/exchange_2026_11.csv that say "fit", 6 % off on average and 19 % at worst;
    software times are per whole core.
    """

    # A part of an RTT of agreement before the ring starts, then 2(n-1) one-way hops.
    agreement_rtts: float = 0.32
    latency_per_hop: float = 0.97
    # Agreement on the gathers of a table's rows, in RTTs: steps of an embedding on 2, 3 and 4 hosts
    # 10 ms apart took 4.0, 5.7 and 7.7 of them longer than their bytes and one sum explain.
    gather_rtts: float = 1.3
    # gRPC's and TensorFlow's own CPU time, per hop and per byte sent; a constant time per
    # all-reduce came out as zero.
    hop_cpu_s: float = 0.00044
    byte_cpu_s: float = 8.4e-10
    # `direct`: one-way latencies as the probe saw them (assumed); CPU time of a sum that leaves
    # and enters the graph, of a message sent and one received, of a byte sent and one received,
    # of a byte added, of a byte packed before and unpacked after, as measured on one core over
    # loopback. A GPU's gradients come to the CPU and go back (assumed).
    direct_latency: float = 1.0
    direct_sum_cpu_s: float = 0.0001
    direct_message_cpu_s: float = 0.000067
    direct_byte_cpu_s: float = 3.5e-10
    direct_add_cpu_s: float = 5.0e-11
    direct_pack_cpu_s: float = 3.6e-10
    gpu_copy_bytes_per_s: float = 6.0e9
    # `decentralized`: CPU time per byte of the model and per peer, to add a gradient to what the
    # peer has not been sent, choose what goes, and pack it (3.7 to 7.5e-10 with 4 and 15 MB and up
    # to five peers, timed in one process).
    peer_byte_cpu_s: float = 6.0e-10
    # Streams to or from several peers get this much less out of an interface that they share than
    # one alone: 1.00 to 1.12 on four lab hosts at 100 Mbit/s and 1 Gbit/s.
    shared_interface: float = 1.05
    # Buckets of gradients that leave during the backward pass: this part of their transfer can be
    # hidden behind this part of a step's computing, at the price of so many more sums, each with
    # its changes of threads. Rounded from a CNN and a larger one on two and four lab hosts.
    hidden_transfer: float = 0.75
    hiding_compute: float = 0.6
    n_buckets: float = 4.0
    bucket_cpu_s: float = 0.0008
    # Speed of a worker grows with its CPUs to this power; each neighbour on the machine
    # slows memory and caches by this fraction. A CNN and an MLP on two busy cores gave powers
    # of 0.55 and 0.69 (lower bounds, since two threads wait for both cores) and 17 and 4 %.
    cpu_exponent: float = 0.75
    contention: float = 0.10
    # Ray Train's controller and worker group, and a worker's process up to the script's first
    # line (TensorFlow's import), each on a whole core; collectives and each further worker
    # add to it.
    train_s: float = 5.8
    process_s: float = 4.0
    collective_s: float = 1.2
    worker_s: float = 0.15
    # `direct` connects its workers without TensorFlow's collectives (assumed).
    mesh_s: float = 0.3
    # From asking for a node that does not exist until it has joined: 60 to 90 s on the clouds
    # (assumed).
    node_start_s: float = 75.0
    # From the last step to the nodes' release.
    release_s: float = 2.5
    # Forward pass as a fraction of a training step (backward takes about twice forward).
    forward: float = 1 / 3
    # A snapshot copies weights and two optimizer slots.
    checkpoint_s: float = 0.01
    checkpoint_copies: float = 3.0
    checkpoint_bytes_per_s: float = 5.0e8
    checkpoint_every_s: float = 60.0


CONSTANTS: Final = Constants()
S_PER_H: Final = 3600.0

"""How true the lab's network is: what a UDP echo and TCP flows get, against what was set.

Needs root: `sudo .venv/bin/python scripts/bench_lab.py`. Takes about two minutes.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.lab.lab import Lab
from tests.lab.traffic import echo_rtt_s, flow_bytes_per_s, flows_bytes_per_s

RTTS_S = (0.0005, 0.005, 0.05)
RATES_MBIT = (50, 200, 1000)
MBIT = 125_000


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    with Lab(5) as lab:
        print("RTT set       median   90th percentile   ms")
        for rtt_s in (0.0, *RTTS_S, 0.1):
            lab.set("*-*", rtt_s=rtt_s)
            median_s, high_s = echo_rtt_s(lab, "h1", "h2")
            print(f"{rtt_s * 1e3:7g}   {median_s * 1e3:10.2f}   {high_s * 1e3:15.2f}")
        print("\none TCP flow  RTT ms  Mbit/s set      got   share")
        for rtt_s in RTTS_S:
            for rate in RATES_MBIT:
                lab.set("*-*", rtt_s=rtt_s, rate_bytes_per_s=rate * MBIT)
                got = flow_bytes_per_s(lab, "h1", "h2") / MBIT
                print(f"{rtt_s * 1e3:20g} {rate:11d} {got:8.1f} {got / rate:7.1%}")
        show_many(lab)


def show_many(lab: Lab) -> None:
    print("\nseveral TCP flows at once, Mbit/s each")
    for text, rate, pairs in (
        ("4 flows to 4 hosts", 1000, [("h1", f"h{n}") for n in (2, 3, 4, 5)]),
        ("ring of 4", 1000, [("h1", "h2"), ("h2", "h3"), ("h3", "h4"), ("h4", "h1")]),
        ("one flow", None, [("h1", "h2")]),
    ):
        lab.set("*-*", rtt_s=0.0005, rate_bytes_per_s=(rate or 0) * MBIT)
        print(f"{text}, {rate or 'no'} Mbit/s each: {_mbit(flows_bytes_per_s(lab, pairs))}")


def _mbit(rates: Sequence[float]) -> str:
    return " ".join(f"{rate / MBIT:.0f}" for rate in rates)


if __name__ == "__main__":
    main()

"""The probe between real hosts of the lab: what it says beside what the network was set to."""

import json
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from launcher.probe import MAX_BYTES_PER_NODE
from launcher.record import CODEC
from policies.schema import DEFAULT_PATH, Link, Network
from tests.lab.host import ROOT
from tests.lab.lab import Lab, SecondNetwork
from tests.lab.probe_agents import LabAgents

MBIT = 125_000.0
HEADERS = 52 / 1500  # IP, TCP and its time stamps
RTT_FLOOR_S = 0.3e-3

SYMMETRIC = [(rtt, rate, rate) for rtt in (0.0005, 0.005, 0.05) for rate in (50, 200, 1000)]
ASYMMETRIC = [(0.025, 50, 1000), (0.05, 200, 50), (0.005, 1000, 200)]
SITE_RTT_S, SITE_MBIT = 0.04, 200
FAR_RTT_S, FAR_MBIT = 0.05, 200

PROBE = """
import json, logging, sys
from pathlib import Path
from launcher.cluster import connect, disconnect
from launcher.probe import probe
from launcher.record import CODEC
folder = Path("/tmp/home")
cluster = connect(sys.argv[1], None, price_usd_per_h=None, temp_dir=None, log_dir=folder)
found = [CODEC.encode(probe(cluster)) for _ in range(int(sys.argv[2]))]
ips = {node.id: node.ip for node in cluster.nodes}
disconnect(cluster)
print(json.dumps([ips, *found]))
"""


@dataclass(frozen=True, slots=True)
class Shot:
    """One direction as set and as measured; rates in bytes per second of TCP payload."""

    name: str
    rtt_s: float
    rate_bytes_per_s: float
    link: Link
    took_s: float

    @property
    def rtt_error(self) -> float:
        """The error of the RTT over what is allowed: 10 % or 0.3 ms."""
        measured_s = self.link.rtt_s if self.link.rtt_s is not None else float("inf")
        return abs(measured_s - self.rtt_s) / max(0.1 * self.rtt_s, RTT_FLOOR_S)

    @property
    def rate_error(self) -> float:
        """The relative error of the bandwidth."""
        return abs((self.link.bandwidth_bytes_per_s or 0.0) / self.rate_bytes_per_s - 1)


@dataclass(slots=True)
class Verdicts:
    """Goal lines, and whether all were met."""

    lines: list[str] = field(default_factory=list)
    missed: int = 0

    def add(self, name: str, value: float, target: float, *, digits: int = 2) -> None:
        """`value` has to be at most `target`."""
        met = value <= target
        self.missed += not met
        verdict = "met" if met else "missed"
        self.lines.append(f"goal {name}: {value:.{digits}f} (target {target:g}) {verdict}")


def measure_hosts(quick: bool) -> tuple[Verdicts, list[dict[str, object]]]:
    """All parts on real hosts, with their tables printed."""
    verdicts, rows = Verdicts(), list[dict[str, object]]()
    for part in (sweep, two_networks, cut_host, busy_network, eight_hosts, far_hosts):
        rows += part(verdicts, 1 if quick else 3)
    return verdicts, rows


def sweep(verdicts: Verdicts, n_times: int) -> list[dict[str, object]]:
    """Two hosts, one link: RTT, rates there and back."""
    shots: list[Shot] = []
    with Lab(2) as lab, LabAgents(lab) as agents:
        for rtt_s, out_mbit, back_mbit in SYMMETRIC + ASYMMETRIC:
            lab.set("h1>h2", rtt_s=rtt_s, rate_bytes_per_s=out_mbit * MBIT)
            lab.set("h2>h1", rtt_s=rtt_s, rate_bytes_per_s=back_mbit * MBIT)
            for _ in range(n_times):
                network = agents.survey()
                shots += _shots("pair", network, rtt_s, {"h1": out_mbit, "h2": back_mbit})
        lab.set("h1-h2", rtt_s=0.02, jitter_s=0.002, loss=0.01, rate_bytes_per_s=20 * MBIT)
        lossy = agents.survey()
    _print_shots(shots)
    link = _link(lossy, "h1", "h2")
    jitter, loss = 1e3 * (link.jitter_s or 0), 100 * (link.loss or 0)
    print(
        f"set jitter ±2 ms, loss 1 % each way: jitter {jitter:.2f} ms, loss {loss:.1f} % measured"
    )
    verdicts.add("rtt_error_of_allowed", max(s.rtt_error for s in shots), 1.0)
    verdicts.add("bandwidth_error", max(s.rate_error for s in shots), 0.15, digits=3)
    return [_row(shot) for shot in shots]


def two_networks(verdicts: Verdicts, n_times: int) -> list[dict[str, object]]:
    """Three hosts on a slow network, with a fast one beside it."""
    fast = SecondNetwork(("h1", "h2", "h3"), rtt_s=0.0005, rate_bytes_per_s=1000 * MBIT)
    rates = dict.fromkeys(("h1", "h2", "h3"), 100)
    shots: list[Shot] = []
    made = Lab(3, rtt_s=0.005, rate_bytes_per_s=100 * MBIT, second_network=fast)
    with made as lab, LabAgents(lab) as agents:
        for _ in range(n_times):
            network = agents.survey()
            shots += _shots("slow", network, 0.005, rates)
            wide = dict.fromkeys(rates, 1000)
            shots += _shots("fast", network, 0.0005, wide, "10.98.0.0/24")
    print("\ntwo networks of three hosts")
    _print_shots(shots)
    verdicts.add("two_networks_paths_missing", 12 * n_times - len(shots), 0, digits=0)
    verdicts.add("two_networks_bandwidth_error", max(s.rate_error for s in shots), 0.15, digits=3)
    return [_row(shot) for shot in shots]


def cut_host(verdicts: Verdicts, n_times: int) -> list[dict[str, object]]:
    """Six hosts, of which one falls silent: the probe waits for it once."""
    with Lab(6, rate_bytes_per_s=200 * MBIT) as lab, LabAgents(lab) as agents:
        agents.endpoints()
        whole_s = statistics.median(agents.survey().took_s for _ in range(n_times))
        lab.cut_host("h4")
        agents.cut_later("h4")
        network = agents.survey()
    waited_s = network.took_s - whole_s
    print(f"\nsix hosts {whole_s:.2f} s, with one cut off {network.took_s:.2f} s")
    verdicts.add("silent_host_costs_s", waited_s, 4.5)
    verdicts.add("silent_hosts_named", abs(1 - len(network.silent)), 0, digits=0)
    return [{"part": "cut", "whole_s": whole_s, "took_s": network.took_s}]


def busy_network(verdicts: Verdicts, n_times: int) -> list[dict[str, object]]:
    """Two hosts that share a link with a stream of others: it is said, and what is left."""
    del n_times
    with Lab(3, rate_bytes_per_s=200 * MBIT) as lab, LabAgents(lab) as agents:
        agents.endpoints()
        with _stream(lab, "h1", "h2"):
            network = agents.survey()
    link = _link(network, "h1", "h2")
    left = (link.bandwidth_bytes_per_s or 0.0) / MBIT
    others = link.other_bytes_per_s / MBIT
    print(f"\n200 Mbit/s beside a greedy stream: {left:.0f} left, others {others:.0f} Mbit/s")
    verdicts.add("busy_link_not_said", float(others < 40), 0, digits=0)
    verdicts.add("busy_link_sum_error", abs((left + others) / 200 - 1), 0.35)
    return [{"part": "busy", "left_mbit": left, "others_mbit": others}]


def eight_hosts(verdicts: Verdicts, n_times: int) -> list[dict[str, object]]:
    """Eight hosts at two sites: with agents that are up, and once more with Ray, start and all."""
    with Lab(8, rtt_s=0.0005, rate_bytes_per_s=1000 * MBIT) as lab:
        with LabAgents(lab) as agents:
            agents.endpoints()
            _part_sites(lab)
            networks = [agents.survey(max_bytes=8 * MAX_BYTES_PER_NODE) for _ in range(n_times + 1)]
            ips = {node.id: node.ip for node in agents.nodes}
        _print_eight(verdicts, ips, networks)
        lab.set("*-*", rtt_s=0.0005, rate_bytes_per_s=1000 * MBIT)
        lab.start_ray()
        _part_sites(lab)
        command = [sys.executable, "-c", PROBE, lab.ray_address, str(n_times)]
        done = lab.run("h1", command, cwd=ROOT, timeout_s=100)
    if done.returncode:
        raise RuntimeError(f"the probe failed: {done.stderr[-2000:]}")
    _, *encoded = json.loads(done.stdout.splitlines()[-1])
    on_ray = [CODEC.decode(Network, each) for each in encoded]
    took = " ".join(f"{network.took_s:.1f}" for network in on_ray)
    print(f"as Ray actors, their start on this machine's cores included: {took} s")
    verdicts.add("eight_hosts_on_ray_silent", sum(len(n.silent) for n in on_ray), 0, digits=0)
    return [{"part": "eight", "took_s": n.took_s, "sent_bytes": n.sent_bytes} for n in networks]


def far_hosts(verdicts: Verdicts, n_times: int) -> list[dict[str, object]]:
    """Eight hosts, each far from all others."""
    rates = {f"h{number}": FAR_MBIT for number in range(1, 9)}
    networks = []
    with Lab(8, rtt_s=FAR_RTT_S, rate_bytes_per_s=FAR_MBIT * MBIT) as lab:
        for _ in range(n_times):
            with LabAgents(lab) as agents:  # the starts let the last probe's packets arrive
                agents.endpoints()
                networks.append(agents.survey())
    shots = [shot for each in networks for shot in _shots("far", each, FAR_RTT_S, rates)]
    took = " ".join(f"{network.took_s:.2f}" for network in networks)
    print(f"\neight hosts, all pairs {1e3 * FAR_RTT_S:.0f} ms apart, agents being up: {took} s")
    errors = [shot.rate_error for shot in shots]
    print(f"error of bandwidth {statistics.median(errors):.1%}, worst {max(errors):.1%}")
    verdicts.add("far_hosts_s", statistics.median(n.took_s for n in networks), 5.0)
    verdicts.add("far_hosts_rtt_error_of_allowed", max(s.rtt_error for s in shots), 1.0)
    beyond = sum(error > 0.15 for error in errors) / len(errors)
    verdicts.add("far_hosts_bandwidth_beyond_15_percent", beyond, 0.05)
    return [{"part": "far", "took_s": n.took_s, "sent_bytes": n.sent_bytes} for n in networks]


def _part_sites(lab: Lab) -> None:
    """h1 to h4 at one site, h5 to h8 at another."""
    for near in range(1, 5):
        for far in range(5, 9):
            lab.set(f"h{near}-h{far}", rtt_s=SITE_RTT_S, rate_bytes_per_s=SITE_MBIT * MBIT)


def _print_eight(verdicts: Verdicts, ips: dict[str, str], networks: list[Network]) -> None:
    site = {node: int(ip.rsplit(".", 1)[1]) <= 4 for node, ip in ips.items()}
    shots = []
    for network in networks:
        for link in network.links:
            if link.src != link.dst:
                near = site[link.src] == site[link.dst]
                rtt_s, rate = (0.0005, 1000) if near else (SITE_RTT_S, SITE_MBIT)
                name = "near" if near else "far"
                shots.append(Shot(name, rtt_s, _carries(rate), link, network.took_s))
    took = " ".join(f"{network.took_s:.2f}" for network in networks)
    sent = max(network.sent_bytes for network in networks)
    budget = networks[0].max_bytes
    print(f"\neight hosts at two sites 40 ms apart, agents being up: {took} s")
    print(f"sent at most {sent / 1e6:.0f} MB of {budget / 1e6:.0f} MB")
    for name in ("near", "far"):
        errors = [shot.rate_error for shot in shots if shot.name == name]
        print(
            f"{name}: error of bandwidth {statistics.median(errors):.1%}, worst {max(errors):.1%}"
        )
    verdicts.add("eight_hosts_s", statistics.median(n.took_s for n in networks), 5.0)
    verdicts.add("eight_hosts_rtt_error_of_allowed", max(s.rtt_error for s in shots), 1.0)
    within = sum(s.rate_error <= 0.15 for s in shots) / len(shots)
    verdicts.add("eight_hosts_bandwidth_beyond_15_percent", 1 - within, 0.05)
    verdicts.add("eight_hosts_bytes_of_budget", sent / budget, 1.0)


def _shots(
    name: str, network: Network, rtt_s: float, mbit_by_src: dict[str, int], path: str = DEFAULT_PATH
) -> list[Shot]:
    return [
        Shot(name, rtt_s, _carries(mbit_by_src[link.src]), link, network.took_s)
        for link in network.links
        if link.src != link.dst and link.path == path
    ]


def _carries(mbit: float) -> float:
    return mbit * MBIT * (1 - HEADERS)


def _link(network: Network, src: str, dst: str) -> Link:
    return next(link for link in network.links if (link.src, link.dst) == (src, dst))


def _print_shots(shots: list[Shot]) -> None:
    print("part  link    RTT set  measured  jitter   loss   Mbit/s TCP can  measured  error  took")
    for s in shots:
        k = s.link
        rtt_ms, jitter_ms = 1e3 * (k.rtt_s or 0.0), 1e3 * (k.jitter_s or 0.0)
        measured = (k.bandwidth_bytes_per_s or 0.0) / MBIT
        print(
            f"{s.name:4}  {k.src}>{k.dst}  {1e3 * s.rtt_s:4.1f} ms  {rtt_ms:5.2f} ms"
            f"  {jitter_ms:4.2f} ms  {k.loss or 0.0:5.1%}"
            f"  {s.rate_bytes_per_s / MBIT:14.1f}  {measured:8.1f}"
            f"  {s.rate_error:5.1%}  {s.took_s:.2f} s"
        )


def _row(shot: Shot) -> dict[str, object]:
    return {
        "part": shot.name, "src": shot.link.src, "dst": shot.link.dst, "rtt_s": shot.rtt_s,
        "rate_bytes_per_s": shot.rate_bytes_per_s, "measured_rtt_s": shot.link.rtt_s,
        "measured_bytes_per_s": shot.link.bandwidth_bytes_per_s, "took_s": shot.took_s,
    }  # fmt: skip


@contextmanager
def _stream(lab: Lab, src: str, dst: str) -> Iterator[None]:
    """A stream from one host to another, as fast as it goes."""
    taking = (
        "import socket; s = socket.create_server(('', 5001)); print(flush=True)\n"
        "c, _ = s.accept()\nwhile c.recv(1 << 20): pass"
    )
    giving = (
        f"import socket; s = socket.create_connection(('{lab.ip(dst)}', 5001))\n"
        "while True: s.sendall(bytes(1 << 16))"
    )
    sink = lab.popen(dst, [sys.executable, "-c", taking], stdout=subprocess.PIPE)
    sink.stdout.readline()
    source = lab.popen(src, [sys.executable, "-c", giving])
    try:
        yield
    finally:
        for process in (source, sink):
            process.kill()
            process.wait()

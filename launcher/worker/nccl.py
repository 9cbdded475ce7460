"""NCCL's variables, from the networks that a plan's workers share.

What they mean is said in NVIDIA's NCCL user guide, "Environment Variables"
(https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html).
"""

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

LinkLayer = Literal["InfiniBand", "Ethernet"]
LAYERS: tuple[LinkLayer, ...] = ("InfiniBand", "Ethernet")

# "For generic 100G networks, this value can be manually set to 4", says the user guide of both
# NCCL_SOCKET_NTHREADS and NCCL_NSOCKS_PERTHREAD.
FAST_BYTES_PER_S, THREADS, SOCKETS_PER_THREAD = 100e9 / 8, "4", "4"

_RDMA, _NET = Path("/sys/class/infiniband"), Path("/sys/class/net")
_ACTIVE = 4  # IB_PORT_ACTIVE in the kernel's include/rdma/ib_verbs.h


@dataclass(frozen=True, slots=True)
class RdmaPort:
    """A port over which NCCL could use RDMA, which is up.

    Attributes:
        device: its name in /sys/class/infiniband.
        port: its number, from 1.
        layer: "Ethernet" is RoCE.
        interfaces: network interfaces that belong to it, as far as the kernel tells.
    """

    device: str
    port: int
    layer: LinkLayer
    interfaces: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Wires:
    """What a worker's node has, and what its user has said.

    Attributes:
        node: its id.
        interfaces: name of the interface of each of the worker's networks, the plan's first; ""
            where it has none.
        bytes_per_s: what the first interface is built for; None where that is not known.
        ports: for RDMA.
        said: names of NCCL's variables that are set already.
    """

    node: str
    interfaces: tuple[str, ...]
    bytes_per_s: float | None = None
    ports: tuple[RdmaPort, ...] = ()
    said: frozenset[str] = frozenset()


def nccl_environments(workers: Sequence[Wires]) -> list[dict[str, str]]:
    """The variables of each worker, without those that any worker's user has set.

    Sockets are bound to the networks that all workers share. Several networks are taken for
    rails of their own, which is what `NCCL_CROSS_NIC=0` means. RDMA is used where every worker
    has a port of the same kind on these networks, left to NCCL where each has one elsewhere, and
    switched off where one has none, for NCCL would try it on the others. Workers that share one
    node need no network.
    """
    if len({worker.node for worker in workers}) < 2:
        return [{} for _ in workers]
    shared = [i for i, names in enumerate(zip(*_interfaces(workers), strict=True)) if all(names)]
    found = [_sockets(worker, shared) | rdma for worker, rdma in _with_rdma(workers, shared)]
    said = frozenset().union(*(worker.said for worker in workers))
    return [{k: v for k, v in each.items() if k not in said} for each in found]


def _interfaces(workers: Sequence[Wires]) -> list[tuple[str, ...]]:
    return [worker.interfaces for worker in workers]


def _sockets(worker: Wires, shared: Sequence[int]) -> dict[str, str]:
    names = dict.fromkeys(worker.interfaces[i] for i in shared)
    found = {"NCCL_SOCKET_IFNAME": "=" + ",".join(names)} if names else {}
    return found | ({"NCCL_CROSS_NIC": "0"} if len(names) > 1 else {})


def _with_rdma(
    workers: Sequence[Wires], shared: Sequence[int]
) -> list[tuple[Wires, dict[str, str]]]:
    """Each worker with what is to be said of RDMA, or of fast sockets in its place."""
    for layer in LAYERS:
        ports = [_ports_on(worker, shared, layer) for worker in workers]
        if all(ports):
            names = ["=" + ",".join(f"{p.device}:{p.port}" for p in own) for own in ports]
            return [
                (worker, {"NCCL_IB_HCA": name}) for worker, name in zip(workers, names, strict=True)
            ]
    if all(worker.ports for worker in workers):
        return [(worker, {}) for worker in workers]
    common = {"NCCL_IB_DISABLE": "1"} if any(worker.ports for worker in workers) else {}
    if all((worker.bytes_per_s or 0.0) >= FAST_BYTES_PER_S for worker in workers):
        common |= {
            "NCCL_SOCKET_NTHREADS": THREADS,
            "NCCL_NSOCKS_PERTHREAD": SOCKETS_PER_THREAD,
        }
    return [(worker, common) for worker in workers]


def _ports_on(worker: Wires, shared: Sequence[int], layer: LinkLayer) -> list[RdmaPort]:
    """Ports of a kind; those of Ethernet only on interfaces of networks that all share."""
    names = {worker.interfaces[i] for i in shared}
    return [
        port
        for port in worker.ports
        if port.layer == layer and (layer == "InfiniBand" or names.intersection(port.interfaces))
    ]


def rdma_ports(root: Path = _RDMA) -> tuple[RdmaPort, ...]:
    """This node's ports that are up, in the order of their names."""
    found = []
    for place in sorted(root.glob("*/ports/*")):
        text, state = _text(place / "link_layer"), _text(place / "state")
        layer = next((known for known in LAYERS if known == text), None)
        if layer is not None and state.startswith(f"{_ACTIVE}:"):
            device = place.parent.parent
            interfaces = {_text(entry) for entry in (place / "gid_attrs" / "ndevs").glob("*")}
            interfaces |= {entry.name for entry in (device / "device" / "net").glob("*")}
            named = tuple(sorted(interfaces - {""}))
            found.append(RdmaPort(device.name, int(place.name), layer, named))
    return tuple(found)


def interface_bytes_per_s(interface: str, root: Path = _NET) -> float | None:
    """What an interface is built for; None where the kernel does not tell."""
    with contextlib.suppress(ValueError):
        mbit_per_s = int(_text(root / interface / "speed"))
        return mbit_per_s * 1e6 / 8 if mbit_per_s > 0 else None
    return None


def said_variables(
    environment: Mapping[str, str], files: Iterable[Path] | None = None
) -> frozenset[str]:
    """Names of NCCL's variables that are set in the environment or in its own files."""
    if files is None:
        own = environment.get("NCCL_CONF_FILE")
        files = (Path(own) if own else Path.home() / ".nccl.conf", Path("/etc/nccl.conf"))
    names = {line.partition("=")[0].strip() for file in files for line in _text(file).splitlines()}
    return frozenset(name for name in {*names, *environment} if name.startswith("NCCL_"))


def told(environment: Mapping[str, str]) -> str:
    """The variables in one line, for people."""
    return " ".join(f"{name}={value}" for name, value in environment.items())


def _text(path: Path) -> str:
    """A small file of the kernel's, "" where it cannot be read (some entries are empty)."""
    try:
        return os.fsdecode(path.read_bytes()).strip()
    except OSError:
        return ""

"""A userspace IP switch: joins the hosts of a lab by links with delay, jitter, loss and rate.

It runs as a process of its own, with the standard library alone: `python -I relay.py`, the
configuration as one line of JSON on standard input. It opens a TUN device in the network namespace
of each host, says "ready", and forwards packets until standard input ends. Requests (one JSON line
each, on a UNIX socket) change links while it runs.

Times are seconds of the monotonic clock, rates bytes per second of IP packets; 0 is no limit.
"""

import contextlib
import ctypes
import fcntl
import gc
import heapq
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

CLONE_NEWNET = 0x40000000
TUNSETIFF, TUNSETOFFLOAD, TUNSETVNETHDRSZ = 0x400454CA, 0x400454D0, 0x400454D8
IFF_TUN, IFF_NO_PI, IFF_VNET_HDR = 0x1, 0x1000, 0x4000
OFFLOAD_CHECKSUM, OFFLOAD_SEGMENTS = 0x1, 0x1 | 0x2 | 0x4  # checksums; those and TCP over IPv4, v6
HEADER = 10  # bytes of virtio_net_hdr in front of each packet
MAX_READ = HEADER + 65536
BURST = 32  # packets taken from one host before the others have their turn
# What one crossing costs by itself (measured: RTT 0.1 ms without a delay); taken off the delay.
CROSSING_S = 45e-6
# A processor that idles for milliseconds wakes up to 0.2 ms late (measured on a virtual machine),
# one that naps 20 µs late: so long waits end early, and a short one follows.
NAP_S, WAKE_S = 250e-6, 20e-6
# Below this rate, or with loss, hosts hand over single packets instead of 64 KB at once: one loss
# is then one packet, and a packet does not block a link for 26 ms and more.
SLOW_BYTES_PER_S = 2.5e6
PR_SET_TIMERSLACK = 29
PRIORITY = 10


class Port:
    """A host's end of the network: its TUN device and what passes in and out in all."""

    __slots__ = ("address", "alive", "fd", "in_free_s", "name", "out_free_s", "rate_bytes_per_s")

    def __init__(self, name: str, address: str, fd: int, rate_bytes_per_s: float) -> None:
        self.name, self.address, self.fd = name, socket.inet_aton(address), fd
        self.rate_bytes_per_s = rate_bytes_per_s
        self.in_free_s = self.out_free_s = 0.0
        self.alive = True


class Link:
    """One direction between two hosts. Its queue is first in, first out, and bounded in time."""

    __slots__ = (
        "cut", "delay_s", "dst", "free_s", "jitter_s", "last_s", "loss", "n_bytes", "n_dropped",
        "n_packets", "queue_s", "rate_bytes_per_s", "src",
    )  # fmt: skip

    def __init__(self, src: Port, dst: Port, values: dict[str, Any]) -> None:
        self.src, self.dst = src, dst
        self.free_s = self.last_s = 0.0
        self.n_packets = self.n_bytes = self.n_dropped = 0
        self.delay_s = self.jitter_s = self.loss = self.rate_bytes_per_s = self.queue_s = 0.0
        self.cut = False
        self.update(values)

    def update(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            setattr(self, name, value)

    @property
    def wants_single_packets(self) -> bool:
        rates = (self.rate_bytes_per_s, self.src.rate_bytes_per_s, self.dst.rate_bytes_per_s)
        return self.loss > 0 or any(0 < rate < SLOW_BYTES_PER_S for rate in rates)

    def arrival_s(self, now_s: float, n_bytes: int) -> float | None:
        """When a packet sent now is before the receiver's interface; None where it gets lost."""
        src, dst = self.src, self.dst
        if self.cut or not (src.alive and dst.alive):
            return None
        if self.loss and random.random() < self.loss:
            return None
        latest_s = now_s + self.queue_s
        if src.out_free_s > latest_s or self.free_s > latest_s:
            return None
        at_s = now_s
        if src.rate_bytes_per_s:
            at_s = src.out_free_s = max(at_s, src.out_free_s) + n_bytes / src.rate_bytes_per_s
        if self.rate_bytes_per_s:
            at_s = self.free_s = max(at_s, self.free_s) + n_bytes / self.rate_bytes_per_s
        at_s += max(0.0, self.delay_s - CROSSING_S)
        if self.jitter_s:
            at_s += self.jitter_s * (2.0 * random.random() - 1.0)
        self.last_s = max(at_s, self.last_s)  # no packet overtakes another
        return self.last_s

    def entry_s(self, at_s: float, n_bytes: int) -> float | None:
        """When a packet that came at `at_s` is through the receiver's interface; None if lost.

        Asked at that moment, so that whoever comes first is served first.
        """
        dst = self.dst
        if dst.in_free_s > at_s + self.queue_s:
            return None
        dst.in_free_s = max(at_s, dst.in_free_s) + n_bytes / dst.rate_bytes_per_s
        return dst.in_free_s


class Relay:
    """All ports and links, the packets under way, and the socket that takes requests."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.mtu: int = config["mtu"]
        self.defaults: dict[str, Any] = config["link"]
        self.ports: dict[str, Port] = {}
        self.port_by_fd: dict[int, Port] = {}
        self.link_by_addresses: dict[bytes, Link] = {}
        # Due time, number, where to: a file descriptor, or a link whose receiver's interface
        # the packet has yet to pass.
        self.under_way: list[tuple[float, int, int | Link, bytes]] = []
        self.n_sent = 0
        self.server = socket.socket(socket.AF_UNIX)
        self.server.bind(config["socket"])
        self.server.listen(16)
        self.clients: dict[int, socket.socket] = {}
        self.watched = [self.server.fileno(), sys.stdin.fileno()]
        for host in config["hosts"]:
            self.attach(host)

    def attach(self, host: dict[str, Any]) -> None:
        """Join a host; one that was there before comes back."""
        rate_bytes_per_s = host["rate_bytes_per_s"]
        if (old := self.ports.pop(host["name"], None)) is not None:
            rate_bytes_per_s = old.rate_bytes_per_s
            self.watched.remove(old.fd)
            del self.port_by_fd[old.fd]
            os.close(old.fd)
        fd = open_tun(host["namespace"], host["device"], host["address"], self.mtu)
        port = Port(host["name"], host["address"], fd, rate_bytes_per_s)
        for other in self.ports.values():
            for src, dst in ((port, other), (other, port)):
                link = Link(src, dst, self._values_between(src, dst))
                self.link_by_addresses[src.address + dst.address] = link
        self.ports[port.name] = self.port_by_fd[fd] = port
        self.watched.append(fd)
        self._set_offloads()

    def _values_between(self, src: Port, dst: Port) -> dict[str, Any]:
        old = self.link_by_addresses.get(src.address + dst.address)
        if old is None:
            return self.defaults
        return {name: getattr(old, name) for name in (*self.defaults, "cut")}

    def serve(self) -> None:
        """Forward packets and answer requests until standard input ends."""
        ends = sys.stdin.fileno()
        while True:
            for fd in self._wait():
                if (port := self.port_by_fd.get(fd)) is not None:
                    self._forward(port)
                elif fd == ends:
                    if not os.read(fd, 4096):
                        return
                elif fd == self.server.fileno():
                    self._accept()
                else:
                    self._answer(fd)

    def _wait(self) -> list[int]:
        """Deliver what is due, then wait for the next packet, request or delivery."""
        under_way, pop, write, clock = self.under_way, heapq.heappop, os.write, time.monotonic
        now_s = clock()
        while under_way and under_way[0][0] <= now_s:
            at_s, _, to, packet = pop(under_way)
            if isinstance(to, Link):
                self._enter(to, at_s, packet)
                continue
            with contextlib.suppress(OSError):  # a full queue or a dead host loses a packet
                write(to, packet)
            now_s = clock()
        if not under_way:
            return select.select(self.watched, (), ())[0]
        wait_s = under_way[0][0] - now_s
        if wait_s > 2 * NAP_S:
            wait_s -= NAP_S
        return select.select(self.watched, (), (), max(0.0, wait_s - WAKE_S))[0]

    def _forward(self, port: Port) -> None:
        fd, links, read, clock = port.fd, self.link_by_addresses, os.read, time.monotonic
        for _ in range(BURST):
            try:
                packet = read(fd, MAX_READ)
            except OSError:
                return
            link = links.get(packet[HEADER + 12 : HEADER + 20])  # source and destination
            if link is None:
                continue  # IPv6, multicast, or an address that no host has
            now_s, n_bytes = clock(), wire_bytes(packet)
            at_s = link.arrival_s(now_s, n_bytes)
            if at_s is None:
                link.n_dropped += 1
                continue
            link.n_packets += 1
            link.n_bytes += n_bytes
            self._put(at_s, link if link.dst.rate_bytes_per_s else link.dst.fd, packet)

    def _enter(self, link: Link, at_s: float, packet: bytes) -> None:
        through_s = link.entry_s(at_s, wire_bytes(packet)) if link.dst.rate_bytes_per_s else at_s
        if through_s is None:
            link.n_dropped += 1
            return
        self._put(through_s, link.dst.fd, packet)

    def _put(self, at_s: float, to: "int | Link", packet: bytes) -> None:
        self.n_sent += 1
        heapq.heappush(self.under_way, (at_s, self.n_sent, to, packet))

    def _accept(self) -> None:
        client, _ = self.server.accept()
        self.clients[client.fileno()] = client
        self.watched.append(client.fileno())

    def _answer(self, fd: int) -> None:
        try:
            if line := self.clients[fd].recv(65536):
                self.clients[fd].sendall(json.dumps(self._result(line)).encode() + b"\n")
                return
        except OSError:
            pass  # who asked has gone
        self.watched.remove(fd)
        self.clients.pop(fd).close()

    def _result(self, line: bytes) -> dict[str, Any]:
        try:
            return self._carry_out(json.loads(line))
        except (KeyError, ValueError, OSError, subprocess.CalledProcessError) as error:
            return {"error": f"{type(error).__name__}: {error}"}

    def _carry_out(self, request: dict[str, Any]) -> dict[str, Any]:
        match request["op"]:
            case "link":
                for src, dst in request["pairs"]:
                    self._link(src, dst).update(request["values"])
                self._set_offloads()
            case "port":
                port = self.ports[request["host"]]
                for name, value in request["values"].items():
                    setattr(port, name, value)
                self._set_offloads()
            case "attach":
                self.attach(request["host"])
            case "links":
                return {"links": [describe(link) for link in self.link_by_addresses.values()]}
        return {}

    def _link(self, src: str, dst: str) -> Link:
        return self.link_by_addresses[self.ports[src].address + self.ports[dst].address]

    def _set_offloads(self) -> None:
        single = {k.src.name for k in self.link_by_addresses.values() if k.wants_single_packets}
        for port in self.ports.values():
            offloads = OFFLOAD_CHECKSUM if port.name in single else OFFLOAD_SEGMENTS
            fcntl.ioctl(port.fd, TUNSETOFFLOAD, offloads)


def describe(link: Link) -> dict[str, Any]:
    names = ("delay_s", "jitter_s", "loss", "rate_bytes_per_s", "queue_s", "cut")
    counts = ("n_packets", "n_bytes", "n_dropped")
    alive = link.src.alive and link.dst.alive
    values = {name: getattr(link, name) for name in (*names, *counts)}
    ends = {
        "src": link.src.name,
        "dst": link.dst.name,
        "nic_bytes_per_s": link.src.rate_bytes_per_s,
    }
    return {**ends, "alive": alive, **values}


def wire_bytes(packet: bytes) -> int:
    """Bytes of a packet as it crosses a wire: one of 64 KB is many, each with its own headers."""
    n_bytes = len(packet) - HEADER
    if not packet[1]:  # gso_type
        return n_bytes
    header_bytes, segment_bytes = struct.unpack_from("<HH", packet, 2)
    n_segments = -(-(n_bytes - header_bytes) // segment_bytes)
    return n_bytes + (n_segments - 1) * int(header_bytes)


def open_tun(namespace: str, device: str, address: str, mtu: int) -> int:
    """A TUN device in a network namespace, up and with its address; its file descriptor."""
    libc = ctypes.CDLL(None, use_errno=True)

    def enter(fd: int) -> None:
        if libc.setns(fd, CLONE_NEWNET) != 0:
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")

    subnet = f"{address.rpartition('.')[0]}.0/24"
    own = os.open("/proc/self/ns/net", os.O_RDONLY)
    other = os.open(namespace, os.O_RDONLY)
    try:
        enter(other)
        fd = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
        flags = IFF_TUN | IFF_NO_PI | IFF_VNET_HDR
        fcntl.ioctl(fd, TUNSETIFF, struct.pack("16sH22x", device.encode(), flags))
        fcntl.ioctl(fd, TUNSETVNETHDRSZ, struct.pack("i", HEADER))
        fcntl.ioctl(fd, TUNSETOFFLOAD, OFFLOAD_SEGMENTS)
        for words in (
            f"addr add {address}/24 dev {device}",
            f"link set {device} mtu {mtu} txqueuelen 2000 up",
            f"route replace {subnet} dev {device} src {address} congctl cubic",
        ):
            subprocess.run(["ip", *words.split()], check=True, capture_output=True)
    finally:
        enter(own)
        os.close(own)
        os.close(other)
    return fd


def be_punctual() -> None:
    """Timers to the nanosecond, and ahead of whatever computes on this machine."""
    ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    gc.disable()
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except OSError:
        os.nice(-10)


def main() -> None:
    relay = Relay(json.loads(sys.stdin.buffer.raw.readline()))  # type: ignore[attr-defined]
    be_punctual()
    print("ready", flush=True)
    relay.serve()
    Path(relay.server.getsockname()).unlink(missing_ok=True)


if __name__ == "__main__":
    main()

"""This node's addresses on the networks it shares with others, and what its interfaces carry."""

import ipaddress
import logging
import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

# Bridges and tunnels of container engines and virtual machines: their addresses mean something
# on this machine only.
_LOCAL_ONLY: Final = (
    "lo", "docker", "br-", "veth", "virbr", "vmnet", "vboxnet", "cni", "flannel", "cali", "kube",
    "lxc", "lxd", "podman", "nerdctl", "weave", "cilium",
)  # fmt: skip

_COUNTERS = Path("/proc/net/dev")

# linux/rtnetlink.h, linux/if_addr.h
_GET_ADDRESSES: Final = 22
_DUMP: Final = 0x301
_DONE, _ERROR, _NEW_ADDRESS = 3, 2, 20
_IFA_ADDRESS, _IFA_LOCAL = 1, 2
_HEADER = struct.Struct("=IHHII")  # length, type, flags, sequence, port
_ADDRESS = struct.Struct("=BBBBI")  # family, prefix length, flags, scope, interface
_ATTRIBUTE = struct.Struct("=HH")  # length, type


@dataclass(frozen=True, slots=True)
class Address:
    """An IPv4 address of this node; `network` in CIDR notation, such as "10.98.0.0/24"."""

    ip: str
    network: str
    interface: str


@dataclass(frozen=True, slots=True)
class Counters:
    """Bytes that an interface has received and sent since it came up."""

    received_bytes: int
    sent_bytes: int

    def since(self, before: "Counters") -> "Counters":
        """What has passed between two counts."""
        return Counters(
            self.received_bytes - before.received_bytes, self.sent_bytes - before.sent_bytes
        )


def addresses() -> tuple[Address, ...]:
    """All IPv4 addresses of this node, loopback included; none where the kernel doesn't tell."""
    if not hasattr(socket, "AF_NETLINK"):
        return ()
    try:
        return tuple(_parsed(_asked()))
    except (OSError, struct.error, ValueError) as error:
        log.debug("the node's addresses are not known: %s", error)
        return ()


def shared_addresses(own_ip: str, found: tuple[Address, ...]) -> tuple[Address, ...]:
    """Addresses on which other nodes may reach this one, besides the one that Ray uses.

    Left out: other addresses on the network of `own_ip`, loopback, link-local and single
    addresses (/31, /32), and bridges of container engines.
    """
    own_networks = {address.network for address in found if address.ip == own_ip}
    return tuple(
        address
        for address in found
        if address.ip != own_ip and address.network not in own_networks and _is_shared(address)
    )


def network_of(ip: str, found: tuple[Address, ...]) -> Address | None:
    """The address with this IP, or None."""
    return next((address for address in found if address.ip == ip), None)


def counters(interface: str) -> Counters | None:
    """What an interface has carried so far, or None if that's not known."""
    try:
        lines = _COUNTERS.read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    for line in lines:
        name, colon, numbers = line.partition(":")
        if colon and name.strip() == interface:
            fields = numbers.split()
            return Counters(int(fields[0]), int(fields[8]))
    return None


def _is_shared(address: Address) -> bool:
    ip, network = ipaddress.ip_address(address.ip), ipaddress.ip_network(address.network)
    return not (
        ip.is_loopback
        or ip.is_link_local
        or network.prefixlen > 30
        or address.interface.startswith(_LOCAL_ONLY)
    )


def _asked() -> Iterator[bytes]:
    """The kernel's messages about IPv4 addresses, headers stripped."""
    question = _ADDRESS.pack(socket.AF_INET, 0, 0, 0, 0)
    head = _HEADER.pack(_HEADER.size + len(question), _GET_ADDRESSES, _DUMP, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
        sock.settimeout(1.0)
        sock.send(head + question)
        while True:
            data = sock.recv(1 << 16)
            while data:
                length, kind, *_ = _HEADER.unpack_from(data)
                if kind in (_DONE, _ERROR):
                    return
                if kind == _NEW_ADDRESS:
                    yield data[_HEADER.size : length]
                data = data[(length + 3) & ~3 :]


def _parsed(messages: Iterator[bytes]) -> Iterator[Address]:
    for message in messages:
        _, prefix, _, _, index = _ADDRESS.unpack_from(message)
        value_by_type = dict(_attributes(message[_ADDRESS.size :]))
        # On a point-to-point interface IFA_ADDRESS is the other end's.
        packed = value_by_type.get(_IFA_LOCAL, value_by_type.get(_IFA_ADDRESS))
        if packed is not None:
            ip = socket.inet_ntoa(packed)
            network = ipaddress.ip_network(f"{ip}/{prefix}", strict=False)
            yield Address(ip, str(network), socket.if_indextoname(index))


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        if length < _ATTRIBUTE.size:
            return
        yield kind, data[_ATTRIBUTE.size : length]
        data = data[(length + 3) & ~3 :]

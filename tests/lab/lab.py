"""The lab: hosts with a network between them that behaves as it is told, while things run."""

import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.lab.host import Host, boot, system_files
from tests.lab.network import LinkState, LinkValues, Network, known, start_network
from tests.lab.ray_node import RayNode, authentication, join_cluster, start_cluster
from tests.lab.requirement import missing
from tests.lab.session import Session, open_session

SUBNETS = ("10.99.0", "10.98.0")
MAX_HOSTS = 64
END_S = 10.0


@dataclass(frozen=True, slots=True)
class SecondNetwork:
    """A second interface of some hosts, at 10.98.0.i."""

    hosts: tuple[str, ...]
    rtt_s: float = 0.0005
    rate_bytes_per_s: float | None = None
    jitter_s: float = 0.0
    loss: float = 0.0


class LabError(RuntimeError):
    """The lab cannot do what it was asked to."""


class Hosts:
    """What can be done to the hosts of a running lab, by whoever knows where they are.

    Args:
        environment: of every command that is run, besides the usual.
    """

    def __init__(
        self,
        hosts: Mapping[str, Host],
        networks: Sequence[Network],
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.hosts, self.networks = dict(hosts), tuple(networks)
        self.environment = dict(environment or {})

    @property
    def names(self) -> tuple[str, ...]:
        """Host names, h1 first."""
        return tuple(self.hosts)

    def host(self, name: str) -> Host:
        """The host of this name.

        Raises:
            ValueError: there is none.
        """
        return self.hosts[known(name, self.names)]

    def ip(self, name: str, network: int = 0) -> str:
        """A host's address."""
        address = self.host(name).addresses[network]
        if address is None:
            raise ValueError(f"{name} has no address on network {network}")
        return address

    def home(self, name: str) -> Path:
        """A host's private home folder, as seen from outside."""
        return self.host(name).home

    def outside(self, name: str, path: str | Path) -> Path:
        """Where a path of a host lies on the real machine."""
        return self.host(name).outside(path)

    def popen(self, name: str, command: Sequence[str | Path], **options: Any) -> Any:
        """Start a command in a host: `Host.popen`."""
        env = {**self.environment, **(options.pop("env", None) or {})}
        return self.host(name).popen(command, env=env, **options)

    def run(
        self, name: str, command: Sequence[str | Path], **options: Any
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in a host: `Host.run`."""
        env = {**self.environment, **(options.pop("env", None) or {})}
        return self.host(name).run(command, env=env, **options)

    def entry(
        self, name: str, command: Sequence[str | Path], *, cwd: str | Path | None = None
    ) -> tuple[list[str], dict[str, str]]:
        """The words and the environment that run a command in a host: `Host.entry`."""
        return self.host(name).entry(command, cwd=cwd, env=self.environment)

    def set(
        self,
        links: str,
        *,
        rtt_s: float | None = None,
        jitter_s: float | None = None,
        loss: float | None = None,
        rate_bytes_per_s: float | None = None,
        queue_s: float | None = None,
        network: int = 0,
    ) -> None:
        """Change links while things run.

        Args:
            links: `h1-h3` (both ways), `h1>h3` (one way), `h1-*`, `*-*`.
            rtt_s: and the others: see `LinkValues`.
        """
        values = LinkValues(rtt_s, jitter_s, loss, rate_bytes_per_s, queue_s)
        self.networks[network].set_links(links, values.to_relay())

    def set_nic(self, name: str, rate_bytes_per_s: float | None, *, network: int = 0) -> None:
        """Cap what passes in, and what passes out of a host, all its links together."""
        self.networks[network].set_port(name, rate_bytes_per_s=rate_bytes_per_s or 0.0)

    def cut(self, links: str, *, network: int = 0) -> None:
        """Let packets of these links vanish."""
        self.networks[network].set_links(links, {"cut": True})

    def mend(self, links: str, *, network: int = 0) -> None:
        """Undo `cut`."""
        self.networks[network].set_links(links, {"cut": False})

    def cut_host(self, name: str) -> None:
        """Cut a host off from all others, on all networks."""
        self._set_alive(name, alive=False)

    def mend_host(self, name: str) -> None:
        """Undo `cut_host`."""
        self._set_alive(name, alive=True)

    def _set_alive(self, name: str, *, alive: bool) -> None:
        for network in self.networks:
            if self.host(name).name in network.names:
                network.set_port(name, alive=alive)

    def set_cpu(self, name: str, cpus: float | None) -> None:
        """Cap what a host may compute, in cores; None is no cap."""
        self.host(name).set_cpu(cpus)

    def crash(self, name: str) -> None:
        """Power a host off: its peers hear nothing any more, and all in it is dead."""
        self.cut_host(name)
        self.host(name).kill()

    def links(self, network: int = 0) -> tuple[LinkState, ...]:
        """How every link is set, and what has passed."""
        return self.networks[network].links()


class Lab(Hosts):
    """Hosts h1, h2, … of its own; all of it is gone when the `with` ends, however it ends.

    Args:
        n_hosts: how many.
        rtt_s: of every link, as are `jitter_s`, `loss`, `rate_bytes_per_s` and `queue_s`; see
            `LinkValues`.
        nic_bytes_per_s: rate of each host's interface, in and out, shared by its links.
        cpus: cores per host; None is no quota.
        labels: Ray labels per host.
        second_network: a second interface of some hosts.
        shared: paths under /tmp that all hosts see in spite of their own /tmp.
    """

    def __init__(
        self,
        n_hosts: int = 3,
        *,
        rtt_s: float = 0.0005,
        jitter_s: float = 0.0,
        loss: float = 0.0,
        rate_bytes_per_s: float | None = None,
        queue_s: float | None = None,
        nic_bytes_per_s: float | None = None,
        cpus: Sequence[float | None] | None = None,
        labels: Sequence[Mapping[str, str]] | None = None,
        second_network: SecondNetwork | None = None,
        shared: Sequence[Path] = (),
    ) -> None:
        super().__init__({}, ())
        if not 1 <= n_hosts <= MAX_HOSTS:
            raise ValueError(f"a lab of {n_hosts} hosts: make it 1 to {MAX_HOSTS}")
        self._cpus = _per_host(cpus, None, n_hosts, "cpus")
        self._labels = _per_host(labels, {}, n_hosts, "labels")
        self._names = tuple(f"h{number}" for number in range(1, n_hosts + 1))
        self._values = LinkValues(rtt_s, jitter_s, loss, rate_bytes_per_s, queue_s)
        self._nic_bytes_per_s, self._second = nic_bytes_per_s, second_network
        self._shared = tuple(shared)
        self._stack = ExitStack()
        self._inits: dict[str, subprocess.Popen[bytes]] = {}
        self._ray_address: str | None = None

    def __enter__(self) -> Self:
        if (reason := missing()) is not None:
            raise LabError(reason)
        with ExitStack() as stack:
            stack.enter_context(_sigterm_unwinds())
            self.session = open_session()
            stack.callback(self.session.close)
            self._boot(self.session, stack)
            self._connect(self.session, stack)
            for name, cpus in zip(self.names, self._cpus, strict=True):
                self.set_cpu(name, cpus)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End all hosts and remove every trace."""
        self._stack.close()

    def _boot(self, session: Session, stack: ExitStack) -> None:
        addresses = {name: self._addresses(name) for name in self._names}
        files = system_files(session.folder, self._by_name())
        for name, own in addresses.items():
            stack.callback(self._shut_down, name)
            self._boot_host(name, own, files)

    def _boot_host(
        self, name: str, addresses: tuple[str | None, ...], files: Mapping[str, Path]
    ) -> None:
        folder, group = self.session.folder / name, self.session.group / name
        self.hosts[name], self._inits[name] = boot(
            name, addresses, folder, group, file_by_path=files, shared=self._shared
        )

    def _shut_down(self, name: str) -> None:
        if name in self.hosts:
            self.hosts[name].kill()
            _end(self._inits[name])

    def restart(self, name: str) -> None:
        """Power a host off, and on again: files and links as before, and nothing that runs."""
        crashed = self.host(name)
        self.crash(name)
        _end(self._inits[name])
        self._boot_host(name, crashed.addresses, system_files(self.session.folder, self._by_name()))
        for number, network in enumerate(self.networks):
            if name in network.names:
                network.attach(self.hosts[name], number)
        self.set_cpu(name, self._cpus[self.names.index(name)])

    def _by_name(self) -> dict[str, str]:
        return {name: self._addresses(name)[0] for name in self._names}

    def _addresses(self, name: str) -> tuple[str, *tuple[str | None, ...]]:
        number = name.removeprefix("h")
        first = f"{SUBNETS[0]}.{number}"
        if self._second is None:
            return (first,)
        return (first, f"{SUBNETS[1]}.{number}" if name in self._second.hosts else None)

    def _connect(self, session: Session, stack: ExitStack) -> None:
        values = [(self._names, self._values, self._nic_bytes_per_s)]
        if (second := self._second) is not None:
            own = LinkValues(
                second.rtt_s, second.jitter_s, second.loss, second.rate_bytes_per_s, None
            )
            names = tuple(known(name, self._names) for name in second.hosts)
            values.append((names, own, None))
        for number, (names, value, nic_bytes_per_s) in enumerate(values):
            network, process = start_network(
                [self.hosts[name] for name in names],
                number,
                session.folder / f"relay{number}.sock",
                values=value,
                nic_bytes_per_s=nic_bytes_per_s,
            )
            stack.callback(_end, process)
            self.networks = (*self.networks, network)

    @property
    def ray_address(self) -> str:
        """Where the cluster's head is, for whoever runs in a host."""
        if self._ray_address is None:
            raise LabError("no Ray runs in this lab: call start_ray() first")
        return self._ray_address

    def start_ray(
        self,
        hosts: Sequence[str] | None = None,
        *,
        num_cpus: float | Sequence[float] = 1,
        auth: bool = False,
        env: Mapping[str, str] | None = None,
        head_words: Sequence[str] = (),
    ) -> str:
        """Start Ray on hosts, the head on the first; returns when all have joined.

        Quotas of CPU time are lifted meanwhile. Commands that are run later have Ray's way of
        authentication in their environment.

        Args:
            hosts: all of them by default.
            num_cpus: what Ray may hand out on each host, one number or one per host.
            auth: whether the cluster demands a token.
            env: further variables of Ray's processes.
            head_words: further options of `ray start` on the head.
        """
        names = self.names if hosts is None else tuple(hosts)
        counts = [num_cpus] * len(names) if isinstance(num_cpus, (int, float)) else list(num_cpus)
        labels = dict(zip(self.names, self._labels, strict=True))
        nodes = [
            RayNode(self.host(name), count, labels[name])
            for name, count in zip(names, counts, strict=True)
        ]
        self.environment = authentication(self.hosts.values(), demanded=auth)
        for name in names:
            self.set_cpu(name, None)
        environment = {**self.environment, **(env or {})}
        self._ray_address = start_cluster(nodes, environment, head_words)
        for name, cpus in zip(self.names, self._cpus, strict=True):
            self.set_cpu(name, cpus)
        return self._ray_address

    def join_ray(self, name: str, *, num_cpus: float = 1) -> None:
        """Let a host join the cluster that runs; returns when it has."""
        labels = self._labels[self.names.index(name)]
        self.set_cpu(name, None)
        join_cluster(RayNode(self.host(name), num_cpus, labels), self.ray_address, self.environment)
        self.set_cpu(name, self._cpus[self.names.index(name)])


def _per_host(values: Sequence[Any] | None, default: Any, n_hosts: int, what: str) -> list[Any]:
    if values is None:
        return [default] * n_hosts
    if len(values) != n_hosts:
        raise ValueError(f"{len(values)} {what} for {n_hosts} hosts: give one for each")
    return list(values)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let a process end that lives as long as its standard input, and see that it did."""
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class _sigterm_unwinds:  # noqa: N801 - used like a function
    """SIGTERM ends a `with` block as Ctrl-C does, where nobody else minds the signal."""

    def __enter__(self) -> None:
        self._minds = threading.current_thread() is threading.main_thread() and (
            signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
        )
        if self._minds:
            signal.signal(signal.SIGTERM, _exit)

    def __exit__(self, *_: object) -> None:
        if self._minds:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def _exit(signum: int, frame: object) -> None:
    raise SystemExit(128 + signum)

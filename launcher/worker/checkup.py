"""The doctor's part on a node: says what is there, and meets the other nodes over TCP.

It imports neither TensorFlow nor Keras: versions come from the installed packages' own books.
"""

import hashlib
import hmac
import importlib
import importlib.metadata
import importlib.util
import logging
import os
import platform
import shutil
import socket
import struct
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from launcher.worker.cpu_quota import allowed_cpus
from launcher.worker.greeting import read_exactly

log = logging.getLogger(__name__)

TOKEN_BYTES = 16
PACKAGES = ("ray", "tensorflow", "keras", "tf_keras", "numpy")
N_READINGS = 3  # of a peer's clock; the quickest one counts
_CLOCK = struct.Struct("!d")
_PATIENCE_S = 5.0
_MAX_AT_ONCE = 128


@dataclass(frozen=True, slots=True)
class Needs:
    """What a script needs on each node: modules by their top-level name, and paths."""

    modules: tuple[str, ...] = ()
    paths: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class NodeFacts:
    """What is there on a machine.

    Attributes:
        version_by_name: of Python, the launcher's own worker code and `PACKAGES`; a package
            that is not installed is missing.
        missing_modules: of those that are needed.
        found_paths: of those that are needed.
        disk_free_bytes_by_folder: of the folders that Ray and temporary files use.
        memory_free_bytes: what programs may still take; None: not known.
        shm_bytes: size of the shared memory; None: there is none.
        allowed_cpus: what the operating system lets a process use; None: not known.
        port: where the agent listens; 0: nowhere.
    """

    hostname: str
    version_by_name: Mapping[str, str]
    missing_modules: tuple[str, ...]
    found_paths: tuple[str, ...]
    disk_free_bytes_by_folder: Mapping[str, int]
    memory_free_bytes: int | None
    shm_bytes: int | None
    allowed_cpus: float | None
    port: int = 0


@dataclass(frozen=True, slots=True)
class Peer:
    """Where another node's agent listens."""

    node: str
    ip: str
    port: int


@dataclass(frozen=True, slots=True)
class Contact:
    """How a connection to a peer went.

    Attributes:
        offset_s: the peer's clock minus ours; None: no connection.
        rtt_s: of the reading of the clock; the offset is true to half of it.
        error: why there was no connection.
    """

    node: str
    offset_s: float | None = None
    rtt_s: float | None = None
    error: str | None = None


class CheckupAgent:
    """Answers for a node; serves its clock to whoever knows the token.

    Args:
        ip: the node's address, on which to listen at a port that the system chooses.
        token: `TOKEN_BYTES` random bytes that all agents of a checkup share.
        clock: seconds since the epoch.
    """

    def __init__(self, ip: str, token: bytes, clock: Callable[[], float] = time.time) -> None:
        self._token, self._clock = token, clock
        self._server = socket.create_server((ip, 0), backlog=256)
        self.port: int = self._server.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def facts(self, needs: Needs) -> NodeFacts:
        """What is there on this node."""
        return node_facts(needs, _session_folder(), self.port)

    def meet(self, peers: Sequence[Peer], timeout_s: float) -> tuple[Contact, ...]:
        """Connect to other agents; see `meet`."""
        return meet(peers, self._token, timeout_s)

    def close(self) -> None:
        """Stop listening."""
        self._server.close()

    def _serve(self) -> None:
        while True:
            try:
                sock, _ = self._server.accept()
            except OSError:
                return  # closed
            threading.Thread(target=self._answer, args=(sock,), daemon=True).start()

    def _answer(self, sock: socket.socket) -> None:
        try:
            with sock:
                sock.settimeout(_PATIENCE_S)
                if hmac.compare_digest(read_exactly(sock, TOKEN_BYTES), self._token):
                    while sock.recv(1):
                        sock.sendall(_CLOCK.pack(self._clock()))
        except OSError as error:
            log.debug("a connection ended early: %s", error)


def meet(peers: Sequence[Peer], token: bytes, timeout_s: float) -> tuple[Contact, ...]:
    """Connect to agents, many at the same time, and read their clocks.

    Blocks for at most `timeout_s` per connection and again per reading.
    """
    if not peers:
        return ()
    with ThreadPoolExecutor(min(_MAX_AT_ONCE, len(peers))) as pool:
        return tuple(pool.map(lambda peer: _contact(peer, token, timeout_s), peers))


def connection_error(ip: str, port: int, timeout_s: float) -> str | None:
    """Why no TCP connection can be made, in words; None if it can."""
    try:
        socket.create_connection((ip, port), timeout_s).close()
    except OSError as error:
        return _words(error, timeout_s)
    return None


def node_facts(needs: Needs, session_folder: str | None, port: int = 0) -> NodeFacts:
    """What is there on this machine.

    Args:
        session_folder: where Ray keeps its files, if it runs here.
        port: where an agent listens.
    """
    importlib.invalidate_caches()
    folders = dict.fromkeys(f for f in (tempfile.gettempdir(), session_folder) if f)
    shm = Path("/dev/shm")
    return NodeFacts(
        hostname=socket.gethostname(),
        version_by_name=_versions(),
        missing_modules=tuple(name for name in needs.modules if not _has_module(name)),
        found_paths=tuple(p for p in needs.paths if os.path.exists(os.path.expanduser(p))),  # noqa: PTH110, PTH111 - Path.exists raises for some paths
        disk_free_bytes_by_folder={f: shutil.disk_usage(f).free for f in folders},
        memory_free_bytes=_memory_free_bytes(Path("/proc/meminfo")),
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else None,
        allowed_cpus=allowed_cpus(),
        port=port,
    )


def launcher_version(folder: Path = Path(__file__).parent) -> str:
    """A short hash of the worker code that this process runs."""
    digest = hashlib.sha256()
    for path in sorted(folder.rglob("*.py")):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()[:12]


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version(), "launch": launcher_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _has_module(name: str) -> bool:
    """Whether a top-level module can be found, without running any of it."""
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):  # a module that is loaded without a spec is there
        return True


def _session_folder() -> str | None:
    import ray

    node = getattr(ray._private.worker, "_global_node", None)
    return None if node is None else str(node.get_session_dir_path())


def _memory_free_bytes(meminfo: Path) -> int | None:
    try:
        lines = meminfo.read_text().splitlines()
    except OSError:
        return None
    words = next((line.split() for line in lines if line.startswith("MemAvailable:")), None)
    return int(words[1]) << 10 if words else None


def _contact(peer: Peer, token: bytes, timeout_s: float) -> Contact:
    try:
        with socket.create_connection((peer.ip, peer.port), timeout_s) as sock:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.sendall(token)
            readings = [_reading(sock) for _ in range(N_READINGS)]
    except OSError as error:
        return Contact(peer.node, error=_words(error, timeout_s))
    rtt_s, offset_s = min(readings)
    return Contact(peer.node, offset_s, rtt_s)


def _words(error: OSError, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no connection in {timeout_s:g} s"
    return error.strerror or str(error)


def _reading(sock: socket.socket) -> tuple[float, float]:
    """Round trip and the peer's clock minus ours, both in seconds, as NTP takes them."""
    asked_s, started_s = time.time(), time.perf_counter()
    sock.sendall(b"?")
    (theirs_s,) = _CLOCK.unpack(read_exactly(sock, _CLOCK.size))
    rtt_s = time.perf_counter() - started_s
    return rtt_s, theirs_s - (asked_s + rtt_s / 2)

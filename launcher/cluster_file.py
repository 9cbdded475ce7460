"""What a Ray cluster file says of nodes, and of how to reach and start them."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from launcher.errors import UsageError
from launcher.planned_types import PlannedType, planned_types

LOCAL = "local"
SETUP_KEYS = (
    "initialization_commands",
    "setup_commands",
    "head_setup_commands",
    "worker_setup_commands",
    "file_mounts",
)
_RAY = re.compile(r"(?:^|[\s;&|])((?:\S*/)?ray)\s+(?:start|stop)\b")


@dataclass(frozen=True, slots=True)
class SshAccess:
    """How ssh reaches a node.

    Args:
        key: the private key's file, if the file names one.
        proxy_command: as ssh's ProxyCommand.
    """

    user: str | None
    key: str | None
    proxy_command: str | None


@dataclass(frozen=True, slots=True)
class Preparation:
    """What is done on a worker before Ray starts there.

    Args:
        first: commands before files are copied.
        mounts: what is copied from here: places on the worker, each with its source.
        then: commands after that.
    """

    first: tuple[str, ...] = ()
    mounts: tuple[tuple[str, str], ...] = ()
    then: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ClusterFile:
    """The parts of a Ray cluster file that matter once `ray up` has done its work.

    Args:
        provider: `local`, `aws`, …
        head: the head's address, for the provider `local`.
        workers: the other nodes' addresses, for the provider `local`.
        n_nodes: how many nodes are to be up, the head among them.
        types: the machines that a cloud is to rent; none where the file names machines.
        has_docker: whether Ray runs in a container on each node.
        has_setup: whether a node is rented or prepared before Ray starts on it.
    """

    path: Path
    provider: str
    head: str | None
    workers: tuple[str, ...]
    n_nodes: int
    has_docker: bool
    has_setup: bool
    ssh: SshAccess
    head_start_commands: tuple[str, ...]
    worker_start_commands: tuple[str, ...]
    name: str = "default"
    types: tuple[PlannedType, ...] = ()
    preparation: Preparation = Preparation()
    rsync_filters: tuple[str, ...] = ()

    @property
    def is_local(self) -> bool:
        """Whether the file names the nodes themselves, as it does for own machines."""
        return self.head is not None

    @property
    def addresses(self) -> tuple[str, ...]:
        """The nodes that the file names, the head first; none for a cloud."""
        return () if self.head is None else (self.head, *self.workers)


def read_cluster_file(path: Path) -> ClusterFile:
    """Read a file for `ray up`.

    Raises:
        UsageError: there is no such file, or it lacks what `ray up` needs.
    """
    words = _load(path)
    provider = _mapping(words, "provider", path)
    kind = str(provider.get("type", ""))
    if not kind:
        raise UsageError(f"{path} has no provider type. Give it one, such as type: local or aws.")
    head, workers = _named_nodes(provider, path) if kind == LOCAL else (None, ())
    auth = _mapping(words, "auth", path)
    return ClusterFile(
        path,
        provider=kind,
        head=head,
        workers=workers,
        n_nodes=1 + (_n_local(words, workers) if head is not None else _n_cloud(words, path)),
        has_docker=bool(_mapping(words, "docker", path)),
        has_setup=kind != LOCAL or any(words.get(key) for key in SETUP_KEYS),
        ssh=SshAccess(
            user=_text(auth.get("ssh_user")),
            key=_text(auth.get("ssh_private_key")),
            proxy_command=_text(auth.get("ssh_proxy_command")),
        ),
        head_start_commands=_commands(words, "head_start_ray_commands"),
        worker_start_commands=_commands(words, "worker_start_ray_commands"),
        name=str(words.get("cluster_name") or "default"),
        types=planned_types(words),
        preparation=_preparation(words, path),
        rsync_filters=_rsync_filters(words),
    )


def check_mounts(file: ClusterFile) -> None:
    """See that what is to be copied to the nodes is here, before anything is rented.

    Raises:
        UsageError: it is not.
    """
    for place, source in file.preparation.mounts:
        found = Path(source).expanduser()
        if not found.exists():
            raise UsageError(
                f"{file.path} copies {source} to {place}, but there is no {found.absolute()}. "
                "Such paths begin in the folder that launch is called in."
            )


def ray_command(commands: Sequence[str]) -> str:
    """How these commands call `ray`: by its name, or with the path to it."""
    found = [match[1] for command in commands for match in _RAY.finditer(command)]
    return found[-1] if found else "ray"


def _load(path: Path) -> Mapping[str, Any]:
    try:
        words = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"The cluster file {path} cannot be read: {error.strerror}. {_remedy(error)}"
        ) from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        line = getattr(getattr(error, "problem_mark", None), "line", None)
        where = "" if line is None else f" (line {line + 1})"
        raise UsageError(f"The cluster file {path} is no YAML{where}. Correct it.") from error
    if not isinstance(words, dict) or "provider" not in words:
        raise UsageError(
            f"{path} is no Ray cluster file: it has no provider. See cluster.yaml and "
            "scripts/clusters/local.yaml for examples."
        )
    return words


def _remedy(error: OSError) -> str:
    """What to do about a file that cannot be read."""
    if isinstance(error, FileNotFoundError):
        return (
            "Check its path. The launcher's folder has files to copy: cluster.yaml, and "
            "scripts/clusters for other clouds and for machines of your own."
        )
    if isinstance(error, IsADirectoryError):
        return "Name a file in it."
    return "Check its rights."


def _named_nodes(provider: Mapping[str, Any], path: Path) -> tuple[str | None, tuple[str, ...]]:
    """The head and the workers of a local provider; none where a coordinator has them."""
    if provider.get("coordinator_address"):
        return None, ()
    head, workers = provider.get("head_ip"), provider.get("worker_ips") or []
    if not isinstance(head, str) or not isinstance(workers, list):
        raise UsageError(
            f"{path} has the provider local without head_ip and a list of worker_ips. Give both."
        )
    return head, tuple(str(worker) for worker in workers)


def _n_local(words: Mapping[str, Any], workers: Sequence[str]) -> int:
    wanted = [words.get(name) for name in ("min_workers", "max_workers")]
    return min([len(workers), *(n for n in wanted if isinstance(n, int))])


def _n_cloud(words: Mapping[str, Any], path: Path) -> int:
    """Workers that are up from the start."""
    if not isinstance(words.get("available_node_types"), dict):
        return _n_from_start(words, "", path)
    types = _mapping(words, "available_node_types", path)
    n_by_type = {
        name: _n_from_start(_mapping(types, name, path), f"{name}: ", path) for name in types
    }
    return sum(n for name, n in n_by_type.items() if name != words.get("head_node_type"))


def _n_from_start(about: Mapping[str, Any], where: str, path: Path) -> int:
    n = about.get("min_workers") or 0
    if not isinstance(n, int) or n < 0:
        raise UsageError(f"{path}: {where}min_workers is {n}. Give a whole number, 0 or more.")
    return n


def _preparation(words: Mapping[str, Any], path: Path) -> Preparation:
    mounts = tuple((str(k), str(v)) for k, v in _mapping(words, "file_mounts", path).items())
    common = _commands(words, "setup_commands")
    return Preparation(
        _commands(words, "initialization_commands"),
        mounts,
        common + _commands(words, "worker_setup_commands"),
    )


def _rsync_filters(words: Mapping[str, Any]) -> tuple[str, ...]:
    excluded = (word for each in words.get("rsync_exclude") or () for word in ("--exclude", each))
    files = (
        word
        for each in words.get("rsync_filter") or ()
        for word in ("--filter", f"dir-merge,- {each}")
    )
    return (*excluded, *files)


def _commands(words: Mapping[str, Any], key: str) -> tuple[str, ...]:
    return tuple(str(command) for command in words.get(key) or ())


def _mapping(words: Mapping[str, Any], key: str, path: Path) -> Mapping[str, Any]:
    found = words.get(key) or {}
    if not isinstance(found, dict):
        raise UsageError(f"{path}: {key} must hold keys and values. Correct it.")
    return found


def _text(value: object) -> str | None:
    return None if value is None else str(value)

"""Where a run's files are read from: storage that is reached here, or another machine's disk."""

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from launcher.cluster_join import find_target
from launcher.command import Session
from launcher.errors import ClusterError, RecordError
from launcher.host import join
from launcher.run_actor import NAMESPACE
from launcher.runs import RunStore
from launcher.stagers import answer_of
from launcher.storage import Storage
from launcher.worker.staging.manifest import DataFile, Manifest, Source
from launcher.worker.staging.origin import Found, Origin
from launcher.worker.staging.origins import open_origin
from launcher.worker.staging.relay import Relay, RelayReader, fetch_by_actor

logger = logging.getLogger(__name__)


@contextmanager
def run_origin(
    session: Session, run: str, store: RunStore, address: str | None, logs: Path
) -> Iterator[Origin]:
    """The files of a run: from storage, or through the cluster where another machine keeps them.

    Args:
        address: of the cluster, if it was given.
        logs: where Ray's noise goes.

    Raises:
        RecordError: there is no such run.
        ClusterError: the machine that keeps it cannot be reached.
    """
    host, uri = store.index.host(run), store.index.find(run)
    is_far = host not in (None, socket.gethostname()) and uri is not None and "://" not in uri
    if store.has(run) or host is None or uri is None or not is_far:
        store.load(run)
        yield open_origin(_source(store.folder(run)))
        return
    target = find_target(address, session.environment.ray_address, None)
    if target is None:
        raise RecordError(
            f"{run} is kept in {uri} on {host}. Name the cluster that this machine is part of "
            "(--address HOST:PORT), or call launch there."
        )
    join(target, logs)
    try:
        yield FarOrigin(host, f"{uri}/runs/{run}")
    finally:
        import ray

        ray.shutdown()


def _source(folder: Storage) -> Source:
    return Source(folder.root if folder.is_local else folder.uri)


class FarOrigin:
    """A folder of another machine of the cluster that is joined.

    Raises:
        ClusterError: no such machine is in the cluster.
    """

    def __init__(self, host: str, folder: str) -> None:
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        ids = [n["NodeID"] for n in ray.nodes() if n["Alive"] and n["NodeManagerHostname"] == host]
        if not ids:
            raise ClusterError(
                f"{host}, which keeps the run in {folder}, is not in the cluster. Is it up?"
            )
        there = NodeAffinitySchedulingStrategy(ids[0], soft=False)
        options = {"num_cpus": 0, "max_concurrency": 4, "scheduling_strategy": there}
        self._relay: Any = ray.remote(Relay).options(namespace=NAMESPACE, **options).remote()
        serving = self._relay.serve.remote(Manifest((Source(folder),), ()), {})
        self._checked(serving)

    def found(self) -> tuple[Found, ...]:
        """See `Origin`."""
        return tuple(self._checked(self._relay.found.remote()))

    def open(self, file: DataFile, offset: int) -> RelayReader:
        """See `Origin`."""
        return RelayReader(fetch_by_actor(self._relay), file, offset)

    def _checked(self, ref: Any) -> Any:
        answer = answer_of(ref, "the machine that keeps the run")
        if isinstance(answer, Exception):
            raise answer
        return answer

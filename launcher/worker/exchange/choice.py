"""Makes the exchange that the plan chose."""

import functools
import importlib
import json
import os
from typing import TYPE_CHECKING, Any

from launcher.worker.exchange import Exchange
from launcher.worker.job import Direct

if TYPE_CHECKING:
    from launcher.worker.exchange.background import AllReduce

CONNECT_S = 120.0  # until the slowest worker has imported TensorFlow


def make_exchange(direct: Direct | None, rank: int, world_size: int) -> Exchange:
    """The exchange of this rank; blocks until all workers are there.

    Must come before any TensorFlow operation, which TensorFlow's own runtime demands.

    Args:
        direct: how to exchange over connections of our own, between the workers named in
            `LAUNCH_ADDRESSES`; None leaves it to TensorFlow and those in `TF_CONFIG`.
        rank: of this worker.
        world_size: number of workers.
    """
    if world_size == 1:
        from launcher.worker.exchange.alone import Alone

        return Alone()
    if direct is None:
        from launcher.worker.exchange.collective import CollectiveExchange

        return CollectiveExchange.from_tf_config()
    from launcher.worker.exchange.buckets import MIN_BUCKET_BYTES
    from launcher.worker.exchange.direct import DirectExchange
    from launcher.worker.exchange.transport.mesh import open_mesh

    addresses = json.loads(os.environ["LAUNCH_ADDRESSES"])
    mesh = open_mesh(rank, addresses, direct.secret, timeout_s=CONNECT_S)
    bucket_bytes = MIN_BUCKET_BYTES if direct.overlap else None
    return DirectExchange(mesh, _algorithm(direct), bucket_bytes=bucket_bytes)


def _algorithm(direct: Direct) -> "AllReduce":
    module = importlib.import_module(f"launcher.worker.exchange.algorithms.{direct.algorithm}")
    algorithm: Any = getattr(module, direct.algorithm)
    if direct.algorithm == "two_level":
        return functools.partial(algorithm, sites=direct.sites)
    return algorithm  # type: ignore[no-any-return]

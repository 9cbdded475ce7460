"""What the driver hands to every training process, and what comes back."""

from dataclasses import dataclass, field
from typing import Any, Literal

from launcher.worker.staging.wanted import DataPlace

ORDER_NONE, ORDER_CHECKPOINT, ORDER_STOP = 0, 1, 2


@dataclass(frozen=True, slots=True)
class Direct:
    """How workers exchange gradients over the launcher's own connections.

    Attributes:
        algorithm: a name of `exchange.algorithms`.
        sites: groups of ranks, for two levels.
        secret: 32 random bytes that only this segment's workers know.
        overlap: whether gradients leave while the backward pass still makes others.
    """

    algorithm: str
    sites: tuple[tuple[int, ...], ...]
    secret: bytes = field(repr=False)
    overlap: bool = False


@dataclass(frozen=True, slots=True)
class Decentralized:
    """How workers train without waiting for each other.

    Attributes:
        secret: 32 random bytes that only this segment's workers know.
        max_staleness: of gradients that are applied, in steps; None for no bound.
        transfer_every_steps: steps between two looks at who is behind; 0 for none.
        merge: the part of the pulled weights.
        site_by_rank: where each site has data of its own, the site of each rank; else empty.
    """

    secret: bytes = field(repr=False)
    max_staleness: int | None = 64
    transfer_every_steps: int = 100
    merge: float = 0.75
    site_by_rank: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Stages:
    """How workers train one model together, each a stage of it.

    Attributes:
        cuts: the numbers of the layers before which the model is cut; one less than workers.
        n_layers: of the model that was measured.
        n_micro_batches: that a batch is cut into.
        secret: 32 random bytes that only this segment's workers know.
    """

    cuts: tuple[int, ...]
    n_layers: int
    n_micro_batches: int
    secret: bytes = field(repr=False)


@dataclass(frozen=True, slots=True)
class Job:
    """One segment of training, the same for all ranks.

    Attributes:
        run: the run's name.
        archive: reference to the zipped folder of the script (bytes in Ray's object store).
        script: path of the script inside the folder.
        shown_root: the folder on the user's machine, for tracebacks.
        argv0: the script as the user typed it (`sys.argv[0]`).
        args: the script's own arguments.
        kind: "fit" or "train_loop_per_worker".
        frameworks: "keras", "tf_keras", or both.
        seed: seed for Python, NumPy and Keras on every rank.
        params: what the script finds in `$LAUNCH_PARAMS`, a JSON object.
        node_ids: node of each rank, in the plan's order.
        threads: TensorFlow threads of each rank (empty lets TensorFlow choose).
        checkpoint: reference to a checkpoint's bytes to resume from, or None.
        artifacts: reference to the zipped files that rank 0 had left, or None.
        direct: how to exchange gradients; None leaves it to TensorFlow.
        decentralized: how to train without waiting for each other, instead.
        stages: how to train one model in stages, instead.
        parallelism: "data", "model" or "auto"; what the profiler is to measure for.
        shares: each rank's part of the global batch, any scale (empty for equal ones).
        watch: names this segment for the sentries of its nodes.
        data: where each rank finds the run's data (empty: there are none).
        data_version: changes with the data.
        hints: lines that name likely causes, for messages ("train.py:12: np.random.default_rng()").
        parallel_draws: such lines, where draws in a parallel map are all that was found.
    """

    run: str
    archive: Any
    script: str
    shown_root: str
    argv0: str
    args: tuple[str, ...]
    kind: Literal["fit", "train_loop_per_worker"]
    frameworks: tuple[str, ...]
    seed: int
    node_ids: tuple[str, ...] = ()
    threads: tuple[int, ...] = ()
    checkpoint: Any = None
    artifacts: Any = None
    checkpoint_every_s: float | None = None
    sync_batchnorm: bool = True
    direct: Direct | None = None
    decentralized: Decentralized | None = None
    stages: Stages | None = None
    parallelism: str = "data"
    shares: tuple[float, ...] = ()
    hints: tuple[str, ...] = ()
    parallel_draws: tuple[str, ...] = ()
    watch: str = "segment"
    data: tuple[DataPlace, ...] = ()
    data_version: str = ""
    params: str | None = None


@dataclass(frozen=True, slots=True)
class Event:
    """Something a worker reports. `kind` says which fields of `detail` to expect.

    output      {stream, text}
    stage       {text}
    progress    {fit, epoch, epochs, step, steps, loss, step_s}
    epoch       {fit, epoch, epochs, logs, took_s}
    steps       {fit, from_step, durations_s}
    drift       {mean_staleness, oldest, n_dropped, n_transfers}: of decentralized training
    paths       {uses}: fields of `exchange.path_use.PathUse`
    nccl        {text}: the variables that were set
    checkpoint  {position, path, bytes, took_s}
    artifacts   {path, files, bytes}
    model       {path, bytes}
    warning     {text}
    error       {rank, kind, text}, and of a lost peer {peer, is_cut}
    end         {how}: "done" or "stopped"
    """

    kind: str
    at: float
    detail: dict[str, Any] = field(default_factory=dict)

"""What profiling a script on one node brings back."""

from dataclasses import dataclass

from launcher.worker.pipeline.costs import LayerProfile


@dataclass(frozen=True, slots=True)
class Measurement:
    """A few steps of the script's first `fit`, on one worker.

    Attributes:
        batch_rows: rows of each measured batch size.
        step_s: median step time at each of them, same order.
        steps: steps per epoch, None if the data does not tell.
        random_layers: why the curve is only statistically the same ("dropout", …).
        max_workers: what the data can feed, with the reason.
        import_s: time TensorFlow took to import; setup_s: script start to first step's end.
        ready_s: from the call in the worker to the script's first line; took_s: to its return.
        n_batch_norms: layers that normalise over the batch; n_slices: gradients that are slices of
            tables.
        assumed: what a script's own loop does not tell, and is assumed ("epochs").
        uses_fit: whether the script calls `fit`, and has no training loop of its own.
        layers: what training in stages would take, where that was to be measured.
        spawn_s: from asking for the process to the call in it, as the driver saw it.
    """

    global_batch: int
    batch_rows: tuple[int, ...]
    step_s: tuple[float, ...]
    steps: int | None
    epochs: int
    validation_steps: int
    early_stopping: bool
    n_params: int
    payload_bytes: int
    n_tensors: int
    random_layers: tuple[str, ...]
    max_workers: int | None
    max_workers_reason: str | None
    import_s: float
    setup_s: float
    ready_s: float = 0.0
    took_s: float = 0.0
    spawn_s: float = 0.0
    n_batch_norms: int = 0
    n_slices: int = 0
    assumed: tuple[str, ...] = ()
    layers: LayerProfile | None = None
    uses_fit: bool = True

    @property
    def startup_s(self) -> float:
        """From asking for the process to the script's first line in it."""
        return self.spawn_s + self.ready_s


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the script could not be profiled.

    kind "script": it raised, `text` is its traceback; "refused": `text` is a message.
    """

    kind: str
    text: str

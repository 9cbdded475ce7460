"""What the profiler learns of a script; its values are part of a run record, too (`schema`)."""

from dataclasses import dataclass
from typing import Final, Literal

from policies.pipeline import Part

Exactness = Literal["exact", "statistical"]
Framework = Literal["keras", "tf_keras"]

WEIGHT_BYTES: Final = 4  # float32, as optimizers keep them


@dataclass(frozen=True, slots=True)
class Fit:
    """One `fit` call: steps per epoch at the script's global batch, and declared epochs.

    `validation_steps` is the number of evaluation batches after each epoch.
    `epochs` is an upper bound when the script stops early (`early_stopping`).
    """

    global_batch: int
    steps: int
    epochs: int
    validation_steps: int = 0
    early_stopping: bool = False


@dataclass(frozen=True, slots=True)
class KindSpeed:
    """Step time c0_s + c1_s · (rows of the step) of one worker, on a kind of node.

    `cpus` is the number of CPUs the worker held when measured.
    """

    kind: str
    c0_s: float
    c1_s: float
    cpus: float
    gpus: float = 0.0


@dataclass(frozen=True, slots=True)
class StageKind:
    """A kind of node as stages see it.

    `slowness` is how many times as long as the first profiled kind it computes; `memory_bytes` what
    a model may take there (None: not known).
    """

    kind: str
    slowness: float
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class ModelLayers:
    """A model as layers that may be trained in stages on several nodes.

    `parts` and `pass_s` (what any pass takes beyond its layers) are for one of the `micro_batches`
    of a step, on the first of `kinds`. `refusal` says why the model cannot be split, `differences`
    what makes the curve another one than one machine's.
    """

    parts: tuple[Part, ...] = ()
    pass_s: float = 0.0
    micro_batches: int = 1
    kinds: tuple[StageKind, ...] = ()
    differences: tuple[str, ...] = ()
    refusal: str | None = None


@dataclass(frozen=True, slots=True)
class Workload:
    """What the profiler learned of a script.

    `setup_s` is the time from the script's first line to its first training step (data,
    model, tracing). `max_workers` is what the data can feed, with `max_workers_reason`.
    `rounding` names why the curve is only statistically the same ("dropout", …), if it is.
    `startup_s` is the time from asking for a process on a node until the script's first line
    there (Python, TensorFlow's import), where it was measured. `own_loop` says that the script
    brings its own `train_loop_per_worker`, which only TensorFlow's all-reduce can serve.
    `n_batch_norms` layers normalise over the batch; `n_slices` gradients are slices of tables,
    which travel by themselves. Without `uses_fit` the script applies gradients in a loop of its
    own, which decentralized training cannot serve. `layers` were measured only
    where the model may be trained in stages.
    """

    fingerprint: str
    framework: Framework
    exactness: Exactness
    n_params: int
    payload_bytes: int
    n_tensors: int
    fits: tuple[Fit, ...]
    node_kinds: tuple[KindSpeed, ...]
    setup_s: float
    max_workers: int | None = None
    max_workers_reason: str | None = None
    rounding: tuple[str, ...] = ()
    startup_s: float | None = None
    own_loop: bool = False
    n_batch_norms: int = 0
    n_slices: int = 0
    uses_fit: bool = True
    layers: ModelLayers | None = None

    @property
    def weights_bytes(self) -> int:
        """All weights, also where gradients of embeddings send only the rows of a batch."""
        return max(self.payload_bytes, WEIGHT_BYTES * self.n_params)

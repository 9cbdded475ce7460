"""Data parallelism inside an unmodified Keras script: the state and the arithmetic.

Every rank runs the script with plain Keras and goes through the same global batches, of which
it takes its own rows. Gradients, loss denominators, metric states and batch moments are summed
over ranks, so that n workers train as one. What touches Keras's private names is in
`keras_compat` and `tf_keras_compat`.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

import numpy as np

from launcher.errors import ScriptError
from launcher.worker.balance import Balance
from launcher.worker.exchange import Exchange
from launcher.worker.framework import Framework
from launcher.worker.gradients import Gradients
from launcher.worker.kept_state import KeptState
from launcher.worker.logs import Logs
from launcher.worker.metric_sums import metric_variables
from launcher.worker.replicas import broadcast

if TYPE_CHECKING:
    from launcher.worker.own_loop import OwnLoops
    from launcher.worker.step import StepState

Role = Literal["train", "test", "predict"]

OTHER_DATA = (
    "Worker {rank} saw other training data than worker 0, so rows would be trained twice or "
    "never. The likely cause is a random generator of the script's own without a seed, such as "
    "np.random.default_rng(). Give it a seed, or use NumPy's global generator, which launch seeds."
)
GENERATOR = (
    "The {role} data is a Python generator ({name}), whose stream cannot be shared out between "
    "workers. Use tf.data.Dataset.from_generator or a PyDataset (Sequence), or --workers 1."
)


@dataclass(slots=True)
class Call:
    """A `fit`, `evaluate` or `predict` that is running."""

    kind: Literal["fit", "evaluate", "predict", "whole"]
    has_training_data: bool = False


@dataclass(frozen=True, slots=True)
class Replay:
    """How much of the training data to pass over: whole epochs, then steps of the next."""

    epochs: int
    steps: int


class DataParallel(KeptState):
    """Trains one script on all ranks of an exchange as if they were one machine.

    Args:
        exchange: sums over ranks.
        shares: each rank's positive part of every global batch, any scale; equal by default.
            Where the exchange tells waiting from work, training moves them by the ranks' speeds.
        sync_batchnorm: whether batch normalisation takes its moments over the global batch.
    """

    def __init__(
        self,
        exchange: Exchange,
        *,
        shares: Sequence[float] | None = None,
        sync_batchnorm: bool = True,
    ) -> None:
        self.exchange = exchange
        self._balance = Balance(shares or (1.0,) * exchange.world_size)
        if len(self.shares) != exchange.world_size:
            raise ValueError(f"{len(self.shares)} shares for {exchange.world_size} workers")
        self.sync_batchnorm = sync_batchnorm
        self._frameworks: list[Framework] = []
        self._state: StepState | None = None
        self._own: OwnLoops | None = None
        self._calls: list[Call] = []
        self._depth = 0
        self.logs, self.gradients = Logs(self), Gradients(self)
        self.reset()

    def reset(self) -> None:
        """Forgets what belongs to a fit: replays, pending metric states, requests."""
        self._replay: Replay | None = None
        self._pending_metrics: list[np.ndarray] | None = None
        self._unbuilt: WeakSet[Any] = WeakSet()
        self.logs.reset()
        self._request = 0
        if self._state is not None:
            self._state.reset()

    def install(self, frameworks: Collection[str]) -> None:
        """Patches Keras, once per process.

        Args:
            frameworks: of "keras" and "tf_keras".
        """
        from launcher.worker import own_loop_hooks
        from launcher.worker.own_loop import OwnLoops
        from launcher.worker.slices import Slices
        from launcher.worker.step import StepState

        slices, waits = None, self.exchange.waits
        if self.shares_data and waits is not None:
            slices = Slices(self.exchange.rank, self._balance, waits)
        self._state = StepState(self.exchange, slices)
        self._own = OwnLoops(self)
        self._own.rest()
        if frameworks:
            own_loop_hooks.install(self)
        if "keras" in frameworks:
            from launcher.worker import keras_compat

            self._frameworks.append(keras_compat.install(self))
        if "tf_keras" in frameworks:
            from launcher.worker import tf_keras_compat

            self._frameworks.append(tf_keras_compat.install(self))

    # ---- what the session calls

    def request(self, code: int) -> None:
        """Asks all ranks for something (to stop, say); from any thread, on any rank."""
        self._request = code
        self.state.request.assign(float(code))

    def agreed(self) -> int:
        """The sum of all ranks' requests as of the last step; equal on all ranks."""
        if self.exchange.world_size == 1:
            return self._request
        return round(float(self.state.agreed.numpy()))

    def replay(self, epochs: int, steps: int) -> None:
        """Lets the next training data pass over epochs and steps that were trained before."""
        self._replay = Replay(epochs, steps)

    def data_hash(self) -> int:
        """Rolling hash of the global batches trained on in this epoch, int64."""
        return int(self.state.digest.numpy())

    def check_data(self) -> None:
        """Compares the ranks' data hashes; collective.

        Raises:
            ScriptError: a rank saw other data than rank 0; on every rank.
        """
        hashes = np.zeros(self.exchange.world_size, np.int64)
        hashes[self.exchange.rank] = self.data_hash()
        (hashes,) = self.exchange.sum_arrays([hashes], "data hashes")
        different = np.flatnonzero(hashes != hashes[0])
        if different.size:
            raise ScriptError(OTHER_DATA.format(rank=different[0]))

    def prepare(self, model: Any) -> None:
        """Gives all ranks rank 0's weights and random layers of their own; collective."""
        if self.exchange.world_size == 1:
            return
        framework = self.framework_of(model)
        if not broadcast(self.exchange, framework.state_variables(model)):
            self._unbuilt.add(model)
        framework.fold_rank(model, self.exchange.rank)

    def settle(self) -> None:
        """Before weights are kept: nothing to do where all ranks have the same ones."""

    def metric_state(self, model: Any) -> list[np.ndarray]:
        """The states of all metrics, summed over ranks; collective."""
        variables = metric_variables(model.metrics)
        return self.exchange.sum_arrays([v.numpy() for v in variables], "metric states")

    def load_metric_state(self, model: Any, arrays: list[np.ndarray]) -> None:
        """Goes on from metric states: rank 0 takes them over, the others start at zero.

        Where metrics are not built yet, it happens after the first step.
        """
        variables = metric_variables(model.metrics)
        for variable in variables:
            variable.assign(np.zeros(variable.shape, variable.numpy().dtype))
        self._pending_metrics = list(arrays) if self.exchange.rank == 0 else None
        if len(variables) == len(arrays):
            self._add_pending_metrics(variables)

    # ---- what the compatibility layers call

    @property
    def frameworks(self) -> tuple[Framework, ...]:
        """The generations of Keras that are corrected."""
        return tuple(self._frameworks)

    @property
    def state(self) -> "StepState":
        """The running step's numbers."""
        if self._state is None:
            raise ValueError("install() comes first")
        return self._state

    @property
    def own(self) -> "OwnLoops":
        """The script's own loops."""
        if self._own is None:
            raise ValueError("install() comes first")
        return self._own

    @property
    def shares(self) -> tuple[float, ...]:
        """Each rank's part of the global batch as of now, any scale; equal on all ranks."""
        return self._balance.shares

    @shares.setter
    def shares(self, shares: tuple[float, ...]) -> None:
        self._balance.shares = shares
        self._balance.restart()

    @property
    def _follows_speed(self) -> bool:
        return self.shares_data and self.exchange.waits is not None

    @property
    def shares_data(self) -> bool:
        """Whether there is more than one rank."""
        return self.exchange.world_size > 1

    @property
    def in_step(self) -> bool:
        """Whether this is inside a step (maybe while it is traced): Keras's, or an own loop's."""
        return self.in_keras_step or (self.shares_data and self.own.has_element)

    @property
    def in_keras_step(self) -> bool:
        """Whether Keras is inside a train_step or test_step (maybe while tracing it)."""
        return self._depth > 0 and self.shares_data

    @property
    def is_tracing_step(self) -> bool:
        """Whether a train_step or test_step of Keras is running, or is being traced."""
        return self._depth > 0

    @property
    def is_in_keras(self) -> bool:
        """Whether Keras's own loops are running, or a step of theirs."""
        return bool(self._calls) or self._depth > 0

    @property
    def has_global_moments(self) -> bool:
        """Whether batch normalisation takes its moments over all ranks' rows now.

        Always in own loops: they tell no end of an epoch, at which to combine the averages.
        """
        return self.in_step and (self.sync_batchnorm or not self.in_keras_step)

    @contextlib.contextmanager
    def call(self, kind: Literal["fit", "evaluate", "predict", "whole"]) -> Iterator[None]:
        """Marks a call of `fit`, `evaluate`, or `predict`."""
        self._calls.append(Call(kind))
        try:
            yield
        finally:
            self._calls.pop()
            if not self._calls:
                self.own.rest()

    @property
    def running(self) -> Call | None:
        """The innermost call of `fit`, `evaluate` or `predict`."""
        return self._calls[-1] if self._calls else None

    def role(self) -> Role | None:
        """The role of a data stream that is made now; None where it must stay whole."""
        call = self.running
        if call is None or call.kind == "whole":
            return None
        if call.kind == "fit" and not call.has_training_data:
            call.has_training_data = True
            return "train"
        return "predict" if call.kind == "predict" else "test"

    def shared(self, dataset: Any, role: Role, *, ahead: bool) -> Any:
        """The dataset of this rank's slices; one worker's training data carries hashes only.

        Args:
            dataset: of global batches.
            role: what for.
            ahead: whether it may be read before it is asked for.
        """
        from launcher.worker.sharing import cuts_of, share_dataset

        if not self.shares_data and role != "train":
            return dataset
        hashed, numbered = role == "train", role == "predict"
        moving = role == "train" and self._follows_speed
        rank, cuts = self.exchange.rank, None if moving else cuts_of(self.shares)
        return share_dataset(dataset, rank, cuts, hashed=hashed, numbered=numbered, ahead=ahead)

    def refuse_generator(self, role: Role, source: Any) -> None:
        """Raises `ScriptError` for a Python generator, where there is more than one rank."""
        if self.shares_data:
            name = getattr(source, "__qualname__", type(source).__qualname__)
            kind = {"train": "training", "test": "validation", "predict": "prediction"}[role]
            raise ScriptError(GENERATOR.format(role=kind, name=name))

    def take_replay(self) -> Replay:
        """What the training data that starts now must pass over."""
        replay, self._replay = self._replay, None
        return replay or Replay(0, 0)

    def begin_epoch(self) -> None:
        """Starts the data hash anew."""
        self.state.digest.assign(0)

    def pass_over(self, element: Any) -> None:
        """Counts a batch that is passed over in the data hash."""
        from launcher.worker.sharing import Shared, Uncut
        from launcher.worker.step import next_digest

        if isinstance(element, Shared | Uncut):
            self.state.digest.assign(next_digest(self.state.digest, element.digest))

    def run_step(self, step: Callable[[Any], Any], model: Any, data: Any, role: Role) -> Any:
        """Runs a train_step or test_step on its part of a batch, or on a whole batch.

        One that the script calls itself is a step of its own loop.
        """
        from launcher.worker.sharing import Shared, Uncut

        if self._depth or not self._calls:
            return step(data)
        self._depth += 1
        self.logs.begin_step()
        try:
            if isinstance(data, Uncut):
                data = self.state.cut(data)
            if isinstance(data, Shared):
                self.state.begin_shared(data, training=role == "train")
                data = data.data
            elif self.shares_data:
                self.state.begin_whole()
            logs = step(data)
            self.logs.end_step(model, role, logs)
            return logs
        finally:
            self._depth -= 1

    def after_execution(self, model: Any) -> None:
        """After each call of a train function: what had to wait until all was built."""
        if self.shares_data and model in self._unbuilt:
            broadcast(self.exchange, self.framework_of(model).state_variables(model))
            self._unbuilt.discard(model)
        if self._pending_metrics is not None:
            self._add_pending_metrics(metric_variables(model.metrics))

    # ---- details

    def framework_of(self, model: Any) -> Framework:
        """The generation of Keras that a model is of."""
        return next(framework for framework in self._frameworks if framework.is_model(model))

    def _add_pending_metrics(self, variables: Sequence[Any]) -> None:
        pending, self._pending_metrics = self._pending_metrics, None
        for variable, value in zip(variables, pending or [], strict=bool(pending)):
            variable.assign(variable.numpy() + value)

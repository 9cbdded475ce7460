"""Decentralized training of an unmodified Keras script.

To Keras each worker is a machine of its own, which computes its slice of every batch of the
script. What its optimizer applies are its own and its peers' gradients, as far as they have come.
Metrics, evaluation and batch normalisation are each worker's own.
"""

import time
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from launcher.errors import ScriptError, TrainingFailedError
from launcher.worker.data_parallel import DataParallel, Role
from launcher.worker.exchange.alone import Alone
from launcher.worker.exchange.decentralized.batching import Slices
from launcher.worker.exchange.decentralized.dlion import Dlion, DlionOptions
from launcher.worker.exchange.decentralized.figures import Figures
from launcher.worker.exchange.decentralized.layout import Layout
from launcher.worker.exchange.decentralized.link import Hearer
from launcher.worker.exchange.decentralized.links import Links
from launcher.worker.exchange.decentralized.overflow import Overflows
from launcher.worker.exchange.decentralized.own_data import OwnDataTraining
from launcher.worker.exchange.decentralized.sparse import Vector
from launcher.worker.exchange.decentralized.training import FIRST, SETTLE_S, Training
from launcher.worker.exchange.decentralized.transfer import TransferOptions
from launcher.worker.gradients import Gradients
from launcher.worker.job import ORDER_CHECKPOINT, ORDER_NONE, ORDER_STOP
from launcher.worker.job import Decentralized as Options
from launcher.worker.sharing import Shared, Uncut, cut_batch

COPY_WAIT_S = 10.0  # of the first worker alone, where a checkpoint needs another one's weights
STOP_WAIT_S = 3.0  # for the best one's weights when training is stopped
OWN_LOOP = (
    "The script applies gradients outside of model.fit, which --strategy decentralized cannot "
    "exchange. Use model.fit (a train_step of the model's own may be in it), or --strategy direct."
)
TWO_MODELS = (
    "The script's train_step trains two sets of variables by themselves, as a GAN's does, which "
    "--strategy decentralized cannot exchange. Use --strategy direct, and no --allow-approximate."
)


class Decentralized(DataParallel):
    """The engine of one worker that trains with others, and waits for nobody.

    Args:
        training: exchanges gradients.
        ranks: that share each batch out, to begin with: all, or those of this worker's site.
        site_by_rank: where each site has data of its own, the site of each rank; else empty.
        follows_speed: whether slices do; else they stay equal.
        clock: in seconds.
    """

    def __init__(
        self,
        training: Training,
        ranks: Collection[int],
        site_by_rank: Sequence[str] = (),
        *,
        follows_speed: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        part = _Part(training)
        super().__init__(part)
        self._training, self._site_by_rank = training, tuple(site_by_rank)
        self._slices = LocalSlices(training, ranks, clock, follows_speed=follows_speed)
        self._exchanged = ExchangedGradients(self, training, self._slices, part)
        self.gradients = self._exchanged

    def install(self, frameworks: Collection[str]) -> None:
        """Patches Keras, once per process."""
        super().install(frameworks)
        if "keras" in frameworks:
            from launcher.worker import keras_compat

            keras_compat.install_lone_exchange(self._exchanged.note_loss)
            self._exchanged.scale_of.append(keras_compat.loss_scale)
        if "tf_keras" in frameworks:
            from launcher.worker import tf_keras_compat

            tf_keras_compat.install_lone_exchange(self._exchanged.note_loss)
            self._exchanged.scale_of.append(tf_keras_compat.loss_scale)

    def request(self, code: int) -> None:
        """Asks this rank for something, and all ranks to stop if that is it."""
        super().request(code)
        if code >= ORDER_STOP:
            self._training.stop_all()
        elif code == ORDER_CHECKPOINT:
            self._training.ask_copy()

    def agreed(self) -> int:
        """What was asked of this rank, by its driver or by a peer.

        A checkpoint waits for a better worker's weights, while training goes on.
        """
        if self._training.is_told_to_stop:
            return ORDER_STOP
        code = super().agreed()
        waits = code == ORDER_CHECKPOINT and self._training.awaits_copy
        return ORDER_NONE if waits else code

    def model_state(self, model: Any) -> dict[str, Any]:
        """With the weights of the best worker, if they come soon."""
        replica = self._exchanged.replica
        has_best = replica is None or self._training.is_at_rest  # or there is none
        copy = None if has_best else self._training.take_copy(COPY_WAIT_S)
        if copy is None or replica is None:
            return super().model_state(model)
        own = replica.read()
        replica.write(copy)
        try:
            return super().model_state(model)
        finally:
            replica.write(own)

    def positions(self, model: Any) -> dict[str, Any]:
        """How far every worker is."""
        if isinstance(self._training, OwnDataTraining):
            places = sorted(self._training.places().items(), reverse=True)
            by_site = {self._site_by_rank[rank]: [p.epoch, p.step] for rank, p in places}
            return {"place_by_site": by_site}
        steps = (getattr(model.history, "params", None) or {}).get("steps")
        return {"steps_by_rank": self._training.steps_by_rank(), "epoch_steps": steps}

    def go_to(self, epoch: int, step: int) -> None:
        """An epoch begins, or goes on."""
        if isinstance(self._training, OwnDataTraining):
            self._training.go_to(epoch, step)

    def prepare(self, model: Any) -> None:
        """Random layers of its own for each rank; weights come from peers where they differ."""
        self.framework_of(model).fold_rank(model, self._training.rank)

    def figures(self) -> Figures | None:
        """How the exchange went; None where there was none."""
        return self._training.figures()

    @property
    def n_examples(self) -> int:
        """Of this rank's last step."""
        return self._slices.n_examples

    def sent_bytes(self) -> dict[int, int]:
        """What was sent to each peer for the model that is being trained."""
        return self._training.sent_bytes()

    def settle(self) -> None:
        """Goes on with the best worker's weights, when a `fit` ends or training stops.

        A stop at the budget has little time: what has not come by then is not waited for.
        """
        timeout_s = STOP_WAIT_S if self.agreed() >= ORDER_STOP else SETTLE_S
        if self._exchanged.replica is not None:
            self._training.settle(self._exchanged.replica, timeout_s)

    def run_step(self, step: Callable[[Any], Any], model: Any, data: Any, role: Role) -> Any:
        """Runs a train_step or test_step on this rank's slice of a batch, or on a whole batch."""
        if isinstance(data, Uncut):
            data = self._slices.cut(data)
        if not self.is_tracing_step:
            self._exchanged.begin_step()
        return super().run_step(step, model, data, role)

    @property
    def _follows_speed(self) -> bool:
        return True


def new_decentralized(
    options: Options, rank: int, addresses: Sequence[Sequence[str]]
) -> Decentralized:
    """The engine of one of several workers.

    Args:
        options: as the plan says.
        rank: of this worker.
        addresses: of each rank, "ip:port" on each network, "" where it has none.
    """

    def open_links(size: int, hearer: Hearer, generation: int) -> Links:
        return Links(rank, addresses, options.secret, size, hearer, generation)

    transfer = TransferOptions(options.transfer_every_steps, options.merge)
    own = DlionOptions(options.max_staleness, transfer)

    def new_rule(rank: int, peers: Sequence[int], layout: Layout, *, is_new: bool) -> Dlion:
        return Dlion(rank, peers, layout, own, is_new=is_new)

    n_workers, sites = len(addresses), options.site_by_rank
    if not sites:
        return Decentralized(Training(rank, n_workers, open_links, new_rule), range(n_workers))
    training = OwnDataTraining(rank, n_workers, open_links, new_rule)
    own_site = [each for each in range(n_workers) if sites[each] == sites[rank]]
    return Decentralized(training, own_site, sites)


class LocalSlices:
    """This rank's slices of the training batches, and how long it computes on each.

    Args:
        training: knows the workers' speeds.
        ranks: that share each batch out, this one among them, to begin with.
        clock: in seconds.
        follows_speed: whether slices do; else they stay equal.
    """

    def __init__(
        self,
        training: Training,
        ranks: Collection[int],
        clock: Callable[[], float],
        *,
        follows_speed: bool,
    ) -> None:
        self._training, self._clock, self._follows_speed = training, clock, follows_speed
        self._ranks, self._slices = frozenset(ranks), Slices(training.rank, ranks)
        self._begun_s, self.n_examples = clock(), 1

    def cut(self, batch: Uncut) -> Shared:
        """This rank's slice of the batch whose step begins now."""
        with tf.device("/CPU:0"):
            bounds = tf.numpy_function(self._begin, [batch.n_rows], tf.int64)
            bounds = tf.ensure_shape(bounds, [2])
            return cut_batch(batch, bounds[0], bounds[1])

    def busy_s(self) -> float:
        """Since the step began."""
        return self._clock() - self._begun_s

    def _begin(self, n_rows: np.ndarray) -> np.ndarray:
        if self._follows_speed:
            speeds = self._training.speeds().items()
            self._slices.follow({rank: s for rank, s in speeds if rank in self._ranks})
        begin, end = self._slices.bounds(int(n_rows))
        self._begun_s, self.n_examples = self._clock(), end - begin
        return np.array([begin, end], np.int64)


class ExchangedGradients(Gradients):
    """Hands optimizers own and others' gradients.

    Args:
        parallel: the engine.
        training: exchanges them.
        slices: know how many examples a step has.
        part: is told why the exchange failed.
    """

    def __init__(
        self, parallel: DataParallel, training: Training, slices: LocalSlices, part: "_Part"
    ) -> None:
        super().__init__(parallel)
        self._part = part
        self._training, self._slices = training, slices
        self._loss: Any = None
        self._traced: tuple[int, ...] | None = None
        self._overflows = Overflows()
        self.scale_of: list[Callable[[Any], Any]] = []
        """Tells by what an optimizer's gradients are multiplied; None where it never does that."""
        self.replica: Variables | None = None
        """The model that was trained last."""

    def begin_step(self) -> None:
        """A step is traced."""
        self._traced = None

    def note_loss(self, loss: Any) -> None:
        """The loss of the step that is being traced, before anything scales it."""
        if self._loss is None and self._parallel.is_tracing_step:
            self._loss = loss

    @property
    def _is_alone(self) -> bool:
        return False

    def _exchange_own(
        self,
        apply: Callable[[list[Any]], Any],
        gradients: list[Any],
        variables: Sequence[Any] | None,
        optimizer: Any,
    ) -> Any:
        del apply, gradients, variables, optimizer
        raise ScriptError(OWN_LOOP)

    def _of_keras_step(
        self, gradients: list[Any], variables: Sequence[Any] | None, optimizer: Any
    ) -> list[Any]:
        """What own and others' gradients come to; those that are scaled travel unscaled.

        Raises:
            ScriptError: the script applies gradients by itself.
        """
        if variables is None:
            raise ScriptError(OWN_LOOP)
        places = [place for place, gradient in enumerate(gradients) if gradient is not None]
        if not places:
            return gradients  # Keras tells what is wrong
        replica = Variables([variables[place] for place in places])
        if self._traced not in (None, replica.ids):
            raise ScriptError(TWO_MODELS)
        self._traced = replica.ids
        totals = self._totals([gradients[place] for place in places], replica, optimizer)
        for place, total in zip(places, totals, strict=True):
            gradients[place] = total
        return gradients

    def _totals(self, gradients: Sequence[Any], replica: "Variables", optimizer: Any) -> list[Any]:
        """What the optimizer is to apply, in the shapes of the variables."""
        loss, self._loss = self._loss, None
        with tf.device("/CPU:0"):
            parts = [tf.cast(tf.reshape(g, [-1]), tf.float32) for g in map(_dense, gradients)]
            flat = tf.concat(parts, 0)
            mean = tf.constant(np.nan) if loss is None else tf.cast(loss, tf.float32)
            scales = [s for tell in self.scale_of if (s := tell(optimizer)) is not None]
            is_scaled, scale = bool(scales), tf.cast([*scales, 1.0][0], tf.float32)

            def exchange(flat: Vector, loss: np.ndarray, scale: np.ndarray) -> Vector:
                if not is_scaled:
                    return self._exchange(replica, flat, float(loss))
                if self._overflows.note(flat):
                    return flat
                return np.asarray(self._exchange(replica, flat / scale, float(loss)) * scale)

            total = tf.numpy_function(exchange, [flat, mean, scale], tf.float32)
            total.set_shape([sum(replica.sizes)])
            return [
                tf.cast(tf.reshape(part, variable.shape), gradient.dtype)
                for part, variable, gradient in zip(
                    tf.split(total, replica.sizes), replica.variables, gradients, strict=True
                )
            ]

    def _exchange(self, replica: "Variables", flat: Vector, loss: float) -> Vector:
        slices, busy_s = self._slices, self._slices.busy_s()
        self.replica = replica
        try:
            self._training.open(replica.sizes, replica, replica.ids)
        except TrainingFailedError as error:  # TensorFlow makes an error of its own of it
            self._part.lost = error
            raise
        known = None if np.isnan(loss) else loss
        return self._training.exchange(replica, flat, slices.n_examples, known, busy_s)


class Variables:
    """A model's trainable variables as one flat vector.

    Args:
        variables: of Keras or TensorFlow.
    """

    def __init__(self, variables: Sequence[Any]) -> None:
        self.variables = list(variables)
        self.ids = tuple(id(variable) for variable in self.variables)
        self.sizes = [int(np.prod(variable.shape)) for variable in variables]

    def apply(self, gradient: Vector) -> None:
        """The optimizer does that, in the graph."""
        del gradient
        raise ValueError("the optimizer applies gradients")

    def read(self) -> Vector:
        """A copy of the weights, shape `(d,)`."""
        parts = [np.asarray(variable.numpy(), np.float32).ravel() for variable in self.variables]
        return np.concatenate(parts)

    def write(self, weights: Vector) -> None:
        """Sets the weights, shape `(d,)`."""
        parts = np.split(weights, np.cumsum(self.sizes)[:-1])
        for variable, part in zip(self.variables, parts, strict=True):
            variable.assign(part.reshape(variable.shape))


class _Part(Alone):
    """To Keras a worker is alone; at the end it parts from its peers."""

    def __init__(self, training: Training) -> None:
        self._training = training
        self.lost: TrainingFailedError | None = None

    def close(self) -> None:
        """Parts from the peers: the first worker ends the others' training with its own.

        They part after it, which may still want their weights.
        """
        if self._training.rank == FIRST:
            self._training.stop_all()
        self._training.linger()
        self._training.close()


def _dense(gradient: Any) -> Any:
    return tf.convert_to_tensor(gradient)

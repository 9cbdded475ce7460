"""Model parallelism inside an unmodified Keras script: each rank trains one stage of the model.

Every rank runs the script and goes through the same whole batches. In `fit` a rank computes its
stage of each batch only; metrics, and so what callbacks decide, are the same on all ranks. Outside
of `fit` every rank has the whole model, as the script expects it.
"""

import contextlib
import itertools
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from launcher.errors import ScriptError
from launcher.worker.data_parallel import OTHER_DATA, DataParallel
from launcher.worker.exchange.algorithms.mailbox import Mailbox
from launcher.worker.exchange.alone import Alone
from launcher.worker.job import Stages
from launcher.worker.pipeline.notices import Notices

logger = logging.getLogger(__name__)

OTHER_MODEL = "%s is not the model that was split (%s): each worker trains the whole of it."
ONE_BATCH = (
    "train_on_batch after model.fit in stages: each worker has the optimizer's state of its own "
    "stage only. Use model.fit alone, or --parallelism data."
)


NEEDS_KERAS = (
    "--parallelism model splits models of Keras 3, and the script uses tf_keras. "
    "Use keras, or --parallelism data."
)


class ModelParallel(DataParallel):
    """The engine of one rank of a pipeline.

    Args:
        mailbox: messages between the ranks.
        stages: where the model is cut.
        close: parts from the peers.
    """

    def __init__(
        self, mailbox: Mailbox, stages: Stages, close: Callable[[], None] = lambda: None
    ) -> None:
        super().__init__(_Lone(close))
        self._mailbox, self._stages = mailbox, stages
        self._numbers = itertools.count()
        self._notices = Notices(mailbox, self._numbers)
        self._split: WeakKeyDictionary[Any, Any] = WeakKeyDictionary()
        self._begun: set[int] = set()  # models that all ranks have the same weights of, by identity
        self._fitted: Any = None
        self._is_busy = False
        self._agreed = 0
        self._has_ended = False
        self._kept: dict[str, Any] | None = None

    def install(self, frameworks: Collection[str]) -> None:
        """Patches Keras, once per process.

        Raises:
            ScriptError: the script does not use Keras 3.
        """
        from launcher.worker.pipeline import keras_hooks
        from launcher.worker.pipeline.optimizer_state import Optimizers

        if "keras" not in frameworks:
            raise ScriptError(NEEDS_KERAS)
        super().install(frameworks)
        self.optimizers = Optimizers()
        keras_hooks.install(self)

    # ---- what the session calls

    def request(self, code: int) -> None:
        """Asks all ranks for something; rank 0's requests count."""
        self._request = code

    def agreed(self) -> int:
        """What rank 0 had asked for when the last step began."""
        return self._agreed

    def reset(self) -> None:
        """Forgets what belongs to a fit."""
        super().reset()
        self._agreed = 0

    def agree(self, choice: bool) -> bool:
        """Rank 0's choice; collective."""
        with self._watched():
            return bool(self._notices.tell(0, [float(choice)]).wait()[0])

    def check_data(self) -> None:
        """Compares the ranks' data hashes with rank 0's; collective.

        Raises:
            ScriptError: a rank saw other data than rank 0; on every rank.
        """
        own = np.array([self.data_hash()], np.int64).view(np.float64)
        with self._watched():
            told = [self._notices.tell(rank, own) for rank in range(self._mailbox.world_size)]
            hashes = [int(notice.wait().view(np.int64)[0]) for notice in told]
        for rank, each in enumerate(hashes):
            if each != hashes[0]:
                raise ScriptError(OTHER_DATA.format(rank=rank))

    def prepare(self, model: Any) -> None:
        """Each rank gets rank 0's weights of its stage, and frees all others; collective."""
        split = self._split.get(model)
        if split is None:
            return
        with self._watched():
            self._begin(split)
            if id(model) not in self._begun:
                split.spread()
            self._begun.add(id(model))
            split.cut()

    def collect(self, model: Any) -> None:
        """Brings rank 0 the weights and optimizer state of all stages; collective."""
        if self.fits(model):
            with self._watched():
                self._kept = self._fitted.kept()

    def model_state(self, model: Any) -> dict[str, Any]:
        """What was collected last; on rank 0."""
        kept, self._kept = self._kept, None
        return super().model_state(model) if kept is None else kept

    def finished_state(self, model: Any) -> dict[str, Any] | None:
        """Weights and optimizer state of the whole model, on rank 0; collective."""
        if not self.fits(model):
            return super().finished_state(model)
        self.collect(model)
        kept, self._kept = self._kept, None
        return kept

    def load_model_state(self, model: Any, kept: dict[str, Any]) -> None:
        """Goes on from what `model_state` gave."""
        split = self._split.get(model)
        if split is None:
            super().load_model_state(model, kept)
            return
        with self._watched():
            self._begin(split)
            self._begun.add(id(model))  # every rank has loaded the same
            split.load(kept)

    def has_whole(self, model: Any) -> bool:
        """After the script's last line, on rank 0: whether it has all of a model's weights."""
        self._has_ended = True
        return model not in self._split or bool(self._split[model].is_whole)

    # ---- what the hooks call

    def split(self, model: Any, *, again: bool) -> bool:
        """Before a model is trained: whether it is trained in stages.

        Args:
            model: that is going to be trained.
            again: whether it was compiled since.

        Raises:
            ScriptError: the first model of the script cannot be split.
        """
        from launcher.worker.pipeline.refusals import UnsplittableError, readable_graph
        from launcher.worker.pipeline.split_model import SplitModel

        if model in self._split and not again:
            return True
        is_first = not self._split
        try:
            graph = readable_graph(model)
            if len(graph.calls) != self._stages.n_layers:
                raise UnsplittableError(f"it has {len(graph.calls)} layers")
            cuts, n = self._stages.cuts, self._stages.n_micro_batches
            made = SplitModel(self._mailbox, graph, cuts, n, self._numbers, self.optimizers)
        except UnsplittableError as error:
            if is_first:
                raise
            logger.warning(OTHER_MODEL, model.name, error.reason)
            self._split.pop(model, None)
            return False
        self._split[model] = made
        return True

    def fits(self, model: Any) -> bool:
        """Whether the model is being trained in stages now."""
        return self._fitted is not None and self._fitted.model is model

    def train(self, model: Any, batches: Iterator[Any], n_steps: int) -> Any:
        """So many steps, or as many as there are batches; what `fit` shows after them."""
        return self._through(model, batches, n_steps, self._train)

    def test(self, model: Any, batches: Iterator[Any], n_steps: int) -> Any:
        """So many batches of an evaluation; what `evaluate` shows after them."""
        return self._through(model, batches, n_steps, self._test)

    def whole_step(self, execute: Callable[[], Any]) -> Any:
        """A step of a model that every rank trains for itself; orders hold for all ranks."""
        with self._watched():
            order = self._notices.tell(0, [float(self._request)])
        logs = execute()
        with self._watched():
            self._agreed = round(float(order.wait()[0]))
        return logs

    def end_fit(self, model: Any) -> None:
        """After a `fit`: every rank has the whole model again; collective."""
        if self.fits(model):
            with self._watched():
                self._fitted.make_whole()
            self._fitted = None

    def look_at(self, variable: Any) -> None:
        """Somebody is about to read or set a variable: if it is of the model, make that whole.

        All ranks run the same callbacks, so all of them look at the same time.
        """
        if self._fitted is None or self._is_busy or self._fitted.is_whole:
            return
        if self._fitted.has(variable):
            self.look_at_model(self._fitted.model)

    def look_at_model(self, model: Any) -> None:
        """Somebody is about to use a model as a whole."""
        if self.fits(model) and not self._is_busy:
            with self._watched():
                self._fitted.make_whole()

    def saving(self, model: Any) -> contextlib.AbstractContextManager[None]:
        """While a model is saved: all ranks have all of it, and its optimizer's whole state.

        What the ranks save may be loaded again by the script, so all of it has to be alike.
        """
        split = self._split.get(model)
        if split is None or self._has_ended:
            return contextlib.nullcontext()
        return self._saving(split)

    @contextlib.contextmanager
    def _saving(self, split: Any) -> Iterator[None]:
        if self.fits(split.model):
            self.finished_state(split.model)  # so that the optimizer's whole state is known
        self.look_at_model(split.model)
        if not self.agree(self.optimizers.whole(split.model.optimizer) is not None):
            yield
            return
        with self._watched():
            split.share_states()
        try:
            yield
        finally:
            split.forget_states()

    def refuse_one_batch(self, model: Any) -> None:
        """Raises `ScriptError` where the model's optimizer has the states of a stage only."""
        if self.optimizers.is_cut(getattr(model, "optimizer", None)):
            raise ScriptError(ONE_BATCH)

    # ---- details

    def _begin(self, split: Any) -> None:
        self._fitted = split
        split.begin()

    def _through(
        self, model: Any, batches: Iterator[Any], n_steps: int, step: Callable[[Any, Any], Any]
    ) -> Any:
        from launcher.worker.pipeline.part import Batch

        logs = None
        for _ in range(n_steps):
            try:
                data = next(batches)
            except StopIteration:
                if logs is None:
                    raise
                break
            with self._watched():
                logs = step(self._fitted, Batch.drawn(model, self._opened(data)))
        return logs

    def _train(self, split: Any, batch: Any) -> Any:
        logs, self._agreed = split.train(batch, self._request)
        self._add_pending(split.model)
        return logs

    def _test(self, split: Any, batch: Any) -> Any:
        return split.test(batch)

    def _add_pending(self, model: Any) -> None:
        """Metric states of a checkpoint that had to wait until there were variables for them."""
        if self._pending_metrics is not None:
            self.after_execution(model)

    def _opened(self, data: Any) -> Any:
        """A batch as the script's data gave it; counted in the hash of training data."""
        from launcher.worker.sharing import Shared

        if isinstance(data, Shared):
            self.state.begin_shared(data, training=True)
            return data.data
        return data

    @contextlib.contextmanager
    def _watched(self) -> Iterator[None]:
        """While the engine itself works on the model."""
        before, self._is_busy = self._is_busy, True
        self._depth += 1
        try:
            yield
        finally:
            self._is_busy = before
            self._depth -= 1


class _Lone(Alone):
    """To Keras a rank is alone: it goes through whole batches."""

    def __init__(self, close: Callable[[], None]) -> None:
        self._close = close

    def close(self) -> None:
        """Parts from the peers."""
        self._close()


def new_model_parallel(
    stages: Stages, rank: int, addresses: Sequence[Sequence[str]], timeout_s: float
) -> ModelParallel:
    """The engine of one of several workers; blocks until all of them are there.

    Args:
        stages: as the plan says.
        rank: of this worker.
        addresses: of each rank, "ip:port" on each network, "" where it has none.
        timeout_s: to wait for all workers.
    """
    from launcher.worker.exchange.transport.mesh import open_mesh

    mesh = open_mesh(rank, addresses, stages.secret, timeout_s=timeout_s)
    return ModelParallel(mesh, stages, mesh.close)

"""The training function: what one worker of a segment does, from first to last."""

import contextlib
import json
import logging
import os
import shutil
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from ray.train.v2._internal.execution import context as ray_train_context

from launcher.errors import LauncherError, PeerLostError, StorageError, TrainingFailedError
from launcher.worker import files, script, snapshot
from launcher.worker.activity import ActivityFile, Attended, Phase
from launcher.worker.channel import Channel
from launcher.worker.checkpoints import Checkpoints
from launcher.worker.drift_reports import DriftReports
from launcher.worker.exchange.choice import CONNECT_S, make_exchange
from launcher.worker.exchange.loss import lost_peer
from launcher.worker.job import Job
from launcher.worker.observed import Observed, observe_evaluation
from launcher.worker.output import captured_output
from launcher.worker.path_reports import PathReports
from launcher.worker.positions import position_of
from launcher.worker.script import Ending, Stopped, UserScriptError
from launcher.worker.staging.use import data_in_use

# Loggers whose lines are not the script's output; the last one is what Ray Train calls the
# logger of every `ray.train.report`.
CHATTERING = ("tensorflow", "absl", "ray.train", ray_train_context.__file__)


class WorkerFailedError(RuntimeError):
    """Makes Ray Train end the other workers; what happened went to the keeper before."""


def train(config: dict[str, Any]) -> None:
    """Run the user's script on this worker; called by Ray Train.

    Args:
        config: {"job": Job, "keeper": handle of the keeper actor}.
    """
    job, keeper = config["job"], config["keeper"]
    rank, world_size = int(os.environ["LAUNCH_RANK"]), int(os.environ["LAUNCH_WORLD_SIZE"])
    folder = Path(tempfile.mkdtemp(prefix=f"launch-{job.run}-")) / (
        Path(job.shown_root).name or "root"
    )
    channel = Channel(keeper if rank == 0 else None)
    activity = _activity(job, rank, folder.parent)
    try:
        with data_in_use(job.data, rank):
            _train(job, channel, activity, folder, rank, world_size)
    except UserScriptError as error:
        _tell_error(keeper, channel, rank, "script", error.text)
        raise WorkerFailedError from None
    except TrainingFailedError as error:
        _tell_error(keeper, channel, rank, "lost", str(error), **_who_is_lost(error))
        raise WorkerFailedError from None
    except LauncherError as error:
        kind = "storage" if isinstance(error, StorageError) else "refused"
        _tell_error(keeper, channel, rank, kind, str(error))
        raise WorkerFailedError from None
    finally:
        with contextlib.suppress(Exception):  # the keeper may be gone; nothing to add then
            channel.close()
        shutil.rmtree(folder.parent, ignore_errors=True)
        activity.close()


def _who_is_lost(error: TrainingFailedError) -> dict[str, Any]:
    """Which rank, where that is known, and whether it may live but be out of reach."""
    if not isinstance(error, PeerLostError):
        return {}
    is_cut = any(sign in error.reason for sign in ("sign of life", "did not answer"))
    return {"peer": error.rank, "is_cut": is_cut}


def _activity(job: Job, rank: int, folder: Path) -> ActivityFile:
    """Where this process notes what it is doing, for the sentry of its node."""
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    return ActivityFile.of_rank(job.watch, node_id, rank, folder)


def _train(
    job: Job, channel: Channel, activity: ActivityFile, folder: Path, rank: int, world_size: int
) -> None:
    import ray

    channel.emit("stage", text="starting TensorFlow")
    parallel = start_engine(job, rank, lambda: make_exchange(job.direct, rank, world_size))
    if nccl := os.environ.get("LAUNCH_NCCL"):
        channel.emit("nccl", text=nccl)
    script.unpack(ray.get(job.archive), folder)
    listing = files.listing(folder)
    if job.artifacts is not None:
        script.unpack(ray.get(job.artifacts), folder)
    resume = snapshot.load(ray.get(job.checkpoint)) if job.checkpoint is not None else None
    if resume is not None:
        resume["position"] = position_of(resume["position"], rank, _site(job, rank))
    checkpoints = Attended(Checkpoints(channel, folder, listing, job.checkpoint_every_s), activity)
    ending = Ending()
    session = _watch(job, parallel, channel, activity, checkpoints, rank, resume, ending)
    if session is not None:
        channel.obey(session.order)
    script.seed_everything(job.seed, job.frameworks if parallel is not None else ())
    channel.emit("stage", text="running the script")
    activity.enter(Phase.SCRIPT)
    capture: AbstractContextManager[None] = contextlib.nullcontext()
    if rank == 0:
        capture = captured_output(_shown(channel, str(folder), job.shown_root))
    how = _run_script(job, folder, capture, parallel, session, ending)
    if parallel is not None:
        PathReports(parallel.exchange, channel).script_ended()
        if job.decentralized is not None:
            DriftReports(parallel, channel).epoch_ended()
    if session is not None and how == "done":
        session.finish()
    channel.emit("end", how=how)
    if parallel is not None:
        parallel.exchange.close()


def _site(job: Job, rank: int) -> str | None:
    """The site whose own data a rank trains on; None where all share the same."""
    sites = job.decentralized.site_by_rank if job.decentralized is not None else ()
    return sites[rank] if sites else None


def _run_script(
    job: Job,
    folder: Path,
    capture: AbstractContextManager[None],
    parallel: Any,
    session: Any,
    ending: Ending,
) -> str:
    """Run the script to its end: "done", or "stopped" by the launcher."""
    try:
        with capture:
            script.run_script(job, folder, ending)
    except Stopped:
        return "stopped"
    except UserScriptError as error:
        exchange = parallel.exchange if parallel is not None else None
        lost = lost_peer(exchange, error.__context__)
        if lost is not None:
            raise lost from None
        if session is not None:
            session.finish()  # what was trained and written before the error is kept
        raise
    return "done"


def _shown(channel: Channel, folder: str, shown_root: str) -> Callable[[str, str], None]:
    """Passes output on; warnings and tracebacks on stderr name the user's own folder."""

    def emit(stream: str, text: str) -> None:
        channel.text(stream, text.replace(folder, shown_root) if stream == "stderr" else text)

    return emit


def start_engine(job: Job, rank: int, make_exchange: Callable[[], Any]) -> Any:
    """TensorFlow's threads, the exchange, and Keras's corrections, before the script runs.

    Args:
        make_exchange: called when TensorFlow is imported and has run nothing yet.

    Returns:
        The data-parallel engine; None for a script that brings its own loop for Ray Train.
    """
    for name in CHATTERING:
        logging.getLogger(name).setLevel(logging.ERROR)
    if job.kind != "fit":
        return None  # it imports TensorFlow and makes its strategy itself
    from launcher.worker.devices import set_up_devices

    set_up_devices(job.threads[rank] if job.threads else 0)
    parallel = _new_engine(job, rank, make_exchange)
    parallel.install(job.frameworks)
    return parallel


def _new_engine(job: Job, rank: int, make_exchange: Callable[[], Any]) -> Any:
    """The engine that the plan asks for."""
    if job.decentralized is not None:
        from launcher.worker.decentralized import new_decentralized

        addresses = json.loads(os.environ["LAUNCH_ADDRESSES"])
        return new_decentralized(job.decentralized, rank, addresses)
    if job.stages is not None:
        from launcher.worker.model_parallel import new_model_parallel

        addresses = json.loads(os.environ["LAUNCH_ADDRESSES"])
        return new_model_parallel(job.stages, rank, addresses, CONNECT_S)
    from launcher.worker.data_parallel import DataParallel

    return DataParallel(
        make_exchange(), shares=job.shares or None, sync_batchnorm=job.sync_batchnorm
    )


def _watch(
    job: Job,
    parallel: Any,
    channel: Channel,
    activity: ActivityFile,
    checkpoints: Any,
    rank: int,
    resume: Any,
    ending: Ending,
) -> Any:
    """The session of this rank, watching the frameworks' `fit`; None if there is no engine."""
    if parallel is None:
        return None
    from launcher.worker.fits import watch
    from launcher.worker.own_loop_session import OwnLoopSession
    from launcher.worker.session import Session

    session = Session(
        parallel,
        channel,
        checkpoints,
        rank=rank,
        resume=resume,
        epoch_ended=_reports(job, parallel, channel),
        hints=job.hints,
        # Stages take one batch's rows from one rank and their labels from another.
        parallel_draws=job.parallel_draws if job.stages is None else (),
    )
    for name in job.frameworks:
        watch(__import__(name), Observed(session, activity, ending))
        observe_evaluation(__import__(name), activity)
    parallel.own.watcher = OwnLoopSession(
        parallel, channel, activity, session.keep_files, session.finish, ending
    )
    return session


def _reports(job: Job, parallel: Any, channel: Channel) -> Callable[[], None]:
    """What is told at the end of an epoch."""
    if job.decentralized is not None:
        return DriftReports(parallel, channel).epoch_ended
    return PathReports(parallel.exchange, channel).epoch_ended


def _tell_error(
    keeper: Any, channel: Channel, rank: int, kind: str, text: str, **more: Any
) -> None:
    import time

    import ray

    from launcher.worker.job import Event

    with contextlib.suppress(Exception):  # keep the order of output and error where we can
        channel.flush()
    ray.get(
        keeper.tell.remote(
            [Event("error", time.time(), {"rank": rank, "kind": kind, "text": text, **more})]
        )
    )

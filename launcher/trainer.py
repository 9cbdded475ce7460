"""Build and run a segment of training: Ray Train's `TensorflowTrainer` under one plan.

Starting, resuming and resizing are this one path; they differ only in the job's checkpoint.
"""

import logging
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from launcher.plan_paths import paths_of, uses_nccl
from launcher.record import RunRecord
from launcher.run_actor import NAMESPACE, end_earlier_keepers, keeper_name
from launcher.worker.backend import LaunchBackendConfig
from launcher.worker.job import ORDER_NONE, ORDER_STOP, Event, Job
from policies.schema import DEFAULT_PATH, Network, Plan

logger = logging.getLogger(__name__)

# Ray Train looks at its workers every 2 s; a run ends sooner when it looks more often.
TRAIN_ENVIRONMENT = {
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_METRICS_ENABLED": "0",
    "RAY_TRAIN_COLLECTIVE_TIMEOUT_S": "600",
}


def worker_environment(frameworks: tuple[str, ...]) -> dict[str, str]:
    """Variables that a training process needs before it imports TensorFlow."""
    return {
        "TF_CPP_MIN_LOG_LEVEL": "2",
        "TF_USE_LEGACY_KERAS": "1"
        if "tf_keras" in frameworks and "keras" not in frameworks
        else "0",
        "KERAS_BACKEND": "tensorflow",
        "PYTHONDONTWRITEBYTECODE": "",
        "PYTHONUNBUFFERED": "1",
        # One order of sets of words on all ranks and after a resume, or vocabularies would differ.
        "PYTHONHASHSEED": "0",
        "MPLBACKEND": "Agg",  # a window fails outside of the main thread, or lacks a screen
    }


def tensorflow_trainer() -> type:
    """Ray Train's `TensorflowTrainer` without what costs a run seconds for nothing.

    Its constructor imports TensorFlow into the driver (5–7 s) only for a default that we do not
    use. Its placement group cleaner asks Ray's dashboard whether the controller lives; without
    a dashboard every run waits 12 s for it at its end. Ray itself frees the placement group of
    a controller that died with its driver.

    Its `controller` is the actor that holds the workers, once `fit` has started it: whoever kills
    it ends them all at once, where Ray Train would wait for nodes that do not answer.
    """
    import ray
    from ray.train.v2._internal.callbacks.placement_group_callback import (
        PlacementGroupCleanerCallback,
    )
    from ray.train.v2._internal.constants import get_env_vars_to_propagate
    from ray.train.v2._internal.execution.controller import TrainController
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
    from ray.train.v2.tensorflow.tensorflow_trainer import TensorflowTrainer

    class LaunchTrainer(TensorflowTrainer):
        def __init__(self, train_loop: Any, *, backend_config: Any, **kwargs: Any) -> None:
            DataParallelTrainer.__init__(self, train_loop, backend_config=backend_config, **kwargs)

        controller_class: type = TrainController
        controller: Any = None
        is_cancelled = False

        def _initialize_and_run_controller(self, **options: Any) -> Any:
            here = {ray._raylet.RAY_NODE_ID_KEY: ray.get_runtime_context().get_node_id()}
            variables = get_env_vars_to_propagate()
            variables.setdefault("RAY_WARN_BLOCKING_GET_INSIDE_ASYNC", "0")
            remote = ray.remote(
                num_cpus=0, label_selector=here, runtime_env={"env_vars": variables}
            )(self.controller_class)
            self.controller = remote.remote(**options)
            if self.is_cancelled:
                ray.kill(self.controller)
            ray.get(self.controller.run.remote())
            return ray.get(self.controller.get_result.remote())

        def _create_default_callbacks(self) -> list[Any]:
            made = super()._create_default_callbacks()
            return [c for c in made if not isinstance(c, PlacementGroupCleanerCallback)]

    return LaunchTrainer


def remove_placement_groups() -> None:
    """Free what this driver's jobs hold: without its controller nobody else does.

    Ray removes the placement group of an actor only when the actor's whole job has ended. The
    last four bytes of a placement group's id are its job's.
    """
    import ray
    from ray._raylet import PlacementGroupID
    from ray.util.placement_group import (
        PlacementGroup,
        placement_group_table,
        remove_placement_group,
    )

    job_id = ray.get_runtime_context().get_job_id()
    for group_id, group in placement_group_table().items():
        if group_id.endswith(job_id) and group["state"] != "REMOVED":
            remove_placement_group(PlacementGroup(PlacementGroupID.from_hex(group_id)))


def start_keeper(storage: str, record: RunRecord) -> Any:
    """The keeper actor of a run, on the driver's node; ends those of earlier drivers.

    Raises:
        TakenOverError: a later driver trains the run in this cluster.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from launcher.keeper import Keeper

    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    end_earlier_keepers(record)
    actor = ray.remote(Keeper).options(
        name=keeper_name(record),
        namespace=NAMESPACE,
        num_cpus=0,
        max_concurrency=8,
        scheduling_strategy=here,
    )
    return actor.remote(storage, record.run, record.term)


def ips_by_node(plan: Plan, network: Network | None) -> dict[str, tuple[str, ...]]:
    """Addresses of a plan's nodes on its paths, see `paths_of`.

    Empty where workers use the address that Ray uses.

    Raises:
        ValueError: a node of the plan has no address on the plan's path.
    """
    interfaces = network.interfaces if network else ()
    ip_by_place = {(each.node, each.path): each.ip for each in interfaces}
    paths = paths_of(plan, network)
    if paths == (DEFAULT_PATH,):
        return {}
    missing = {node for node in plan.nodes if (node, paths[0]) not in ip_by_place}
    if missing:
        names = ", ".join(sorted(missing))
        raise ValueError(f"These nodes have no address on {paths[0]}: {names}.")
    return {n: tuple(ip_by_place.get((n, path), "") for path in paths) for n in plan.nodes}


def scaling_config(plan: Plan) -> Any:
    """What Ray Train is asked for: a plan's workers on its nodes, and what each holds there."""
    from ray.train import ScalingConfig

    options = plan.options
    resources = {"CPU": options.cpus_per_worker}
    if options.gpus_per_worker:
        resources["GPU"] = options.gpus_per_worker
    return ScalingConfig(
        num_workers=plan.n_workers,
        use_gpu=options.gpus_per_worker > 0,
        resources_per_worker=resources,
        label_selector=[{"ray.io/node-id": node} for node in plan.nodes],
    )


class SegmentRun:
    """One segment, running in the background.

    Args:
        name: for Ray's own files.
        log_dir: where Ray Train may write.
        network: knows the nodes' addresses on the plan's path.
        end_workers: kills the workers' processes where they are.
    """

    def __init__(
        self,
        name: str,
        plan: Plan,
        job: Job,
        keeper: Any,
        log_dir: Path,
        network: Network | None = None,
        end_workers: Callable[[], None] = lambda: None,
    ) -> None:
        self._end_workers = end_workers
        self.plan, self._job, self._keeper = plan, job, keeper
        self._ips_by_node = ips_by_node(plan, network)
        self._name, self._log_dir = name, log_dir
        self._made: Any = None  # the trainer
        self._is_aborted = False
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._fit, name="launch-segment", daemon=True)

    def start(self) -> None:
        """Start the workers; returns at once."""
        import ray

        ray.get(self._keeper.order.remote(ORDER_NONE))  # forget an earlier segment's order
        self._thread.start()

    def is_running(self) -> bool:
        """Whether Ray Train still holds the workers."""
        return self._thread.is_alive()

    def events(self, timeout_s: float, alone_s: float) -> list[Event]:
        """What the workers reported since the last call; after `alone_s` without one they stop."""
        import ray

        events: list[Event] = ray.get(self._keeper.drain.remote(timeout_s, alone_s))
        return events

    def stop(self) -> None:
        """Ask all ranks to stop at one agreed step, with a checkpoint."""
        self._keeper.order.remote(ORDER_STOP)

    def abort(self) -> None:
        """End the workers at once: kill them and their controller, and free their nodes."""
        import ray

        self._is_aborted = True
        self._end_workers()
        if self._made is None:
            return
        self._made.is_cancelled = True
        if self._made.controller is not None:
            ray.kill(self._made.controller)
        remove_placement_groups()

    def _fit(self) -> None:
        try:
            self._made = self._trainer()
            if not self._is_aborted:
                self._made.fit()
        except BaseException as error:  # noqa: BLE001 - handed to the driver's main thread
            logger.info("Ray Train ended with %s: %s", type(error).__name__, error)
            self.error = error

    def _trainer(self) -> Any:
        from ray.train import FailureConfig, RunConfig

        from launcher.worker.loop import train

        os.environ.update(TRAIN_ENVIRONMENT)
        trainer = tensorflow_trainer()(
            train,
            train_loop_config={"job": self._job, "keeper": self._keeper},
            backend_config=LaunchBackendConfig(
                self.plan.nodes,
                self._ips_by_node,
                for_tensorflow=self.plan.strategy == "allreduce",
                with_nccl=uses_nccl(self.plan),
            ),
            scaling_config=scaling_config(self.plan),
            run_config=RunConfig(
                name=self._name,
                storage_path=str(self._log_dir),
                failure_config=FailureConfig(max_failures=0),
                worker_runtime_env={"env_vars": worker_environment(self._job.frameworks)},
            ),
        )
        if self.plan.strategy == "decentralized":
            from launcher.worker.controller import TolerantController

            trainer.controller_class = TolerantController
        return trainer

"""Learn what a script needs: a few of its steps on each kind of node, remembered by fingerprint."""

import hashlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from launcher.errors import ClusterError, ScriptError, ScriptFailedError
from launcher.layer_facts import model_layers
from launcher.side_by_side import side_by_side
from launcher.small_file import read_object, replace_file
from launcher.trainer import worker_environment
from launcher.worker.job import Job
from launcher.worker.measurement import Measurement, Refusal
from launcher.worker.pipeline.costs import LayerProfile
from launcher.worker.staging.wanted import DataPlace
from policies.schema import Fit, KindSpeed, Node, Workload

logger = logging.getLogger(__name__)

# Brings a run's data to nodes; says where they are, by node id.
Bring = Callable[[Sequence[Node]], Mapping[str, DataPlace]]
UNKNOWN_STEPS = 1000  # assumed where the data does not tell and cannot be counted

ASSUMED_EPOCHS = (
    "The script's own training loop does not tell how long it will train: times and costs are "
    "for an assumed %d passes over its data. A variable such as epochs = 20 tells."
)


def no_data(nodes: Sequence[Node]) -> Mapping[str, DataPlace]:  # noqa: ARG001 - see `Bring`
    """For a run that has none."""
    return {}


@dataclass(frozen=True, slots=True)
class Holding:
    """What a worker would hold on a kind of node, and a node to measure it on."""

    node: Node
    cpus: float
    gpus: float


@dataclass(frozen=True, slots=True)
class ProfileCache:
    """Measurements on this machine's disk, one JSON file per fingerprint."""

    folder: Path

    def load(self, fingerprint: str) -> Measurement | None:
        """The measurement of that fingerprint, if it is there and readable."""
        try:
            data = read_object(self.folder / f"{fingerprint}.json")
            data["batch_rows"], data["step_s"] = tuple(data["batch_rows"]), tuple(data["step_s"])
            data["random_layers"] = tuple(data["random_layers"])
            data["assumed"] = tuple(data["assumed"])
            if data.get("layers") is not None:
                data["layers"] = LayerProfile.of_json(data["layers"])
            return Measurement(**data)
        except (ValueError, KeyError, TypeError):
            return None

    def save(self, fingerprint: str, measurement: Measurement) -> None:
        """Remember a measurement; a full or read-only disk only costs the memory."""
        try:
            path = self.folder / f"{fingerprint}.json"
            replace_file(path, json.dumps(asdict(measurement)))
        except OSError as error:
            logger.warning("The profile cannot be remembered in %s: %s", self.folder, error)


def fingerprint(content: str, job: Job, versions: dict[str, str], holding: Holding) -> str:
    """What a measurement depends on: files, script, arguments, versions, kind of node."""
    parts = [
        content,
        job.script,
        *job.args,
        str(job.frameworks),
        json.dumps(versions, sort_keys=True),
        holding.node.kind,
        f"{holding.cpus}/{holding.gpus}",
        *([job.data_version] if job.data_version else []),
        *([job.params] if job.params is not None else []),
        *([job.parallelism] if job.parallelism != "data" else []),
    ]
    # An argument may be no UTF-8, such as an odd file's name.
    return hashlib.sha256("\0".join(parts).encode(errors="backslashreplace")).hexdigest()[:32]


def profile(
    job: Job,
    holdings: Sequence[Holding],
    fingerprints: Sequence[str],
    cache: ProfileCache,
    bring: Bring = no_data,
) -> tuple[Workload, bool]:
    """Measure the script on one node of each kind, all kinds at the same time.

    Args:
        bring: brings the run's data to nodes that are to measure.

    Returns:
        The workload, and whether all of it was remembered.

    Raises:
        ScriptFailedError: the script raised before its first step.
        ScriptError: the script cannot be trained.
    """
    found = [cache.load(each) for each in fingerprints]
    missing = [index for index, measurement in enumerate(found) if measurement is None]
    if missing:
        places = bring([holdings[index].node for index in missing])
        measured = side_by_side(
            [partial(_measure, job, holdings[index], places) for index in missing]
        )
        for index, measurement in zip(missing, measured, strict=True):
            found[index] = measurement
            cache.save(fingerprints[index], measurement)
    measurements = [measurement for measurement in found if measurement is not None]
    workload = workload_of(measurements, holdings, fingerprints[0], job.frameworks)
    if "epochs" in measurements[0].assumed:
        logger.warning(ASSUMED_EPOCHS, measurements[0].epochs)
    return replace(workload, own_loop=job.kind != "fit"), not missing


def _measure(job: Job, holding: Holding, places: Mapping[str, DataPlace]) -> Measurement:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from launcher.worker.profiling import profile as profile_in_worker

    # The process has a patched Keras and a used model afterwards: it serves one call.
    task = ray.remote(max_calls=1)(profile_in_worker).options(
        num_cpus=holding.cpus,
        num_gpus=holding.gpus,
        max_retries=0,
        scheduling_strategy=NodeAffinitySchedulingStrategy(holding.node.id, soft=False),
        runtime_env={"env_vars": worker_environment(job.frameworks)},
    )
    asked_s = time.perf_counter()
    try:
        place = places.get(holding.node.id)
        job = replace(
            job,
            threads=(max(1, int(holding.cpus)),),
            data=() if place is None else (place,),
        )
        result: Any = ray.get(task.remote(job))
    except ray.exceptions.RayTaskError as error:
        raise ClusterError(
            f"Profiling on node {holding.node.ip} failed: {_last_line(error)}. See whether "
            "the node is fit: launch doctor SCRIPT"
        ) from error
    except ray.exceptions.RayError as error:
        raise ClusterError(
            f"Profiling on node {holding.node.ip} ended early ({type(error).__name__}): the "
            "process died, perhaps for want of memory. Try a smaller batch or another node."
        ) from error
    if isinstance(result, Refusal):
        if result.kind == "script":
            raise ScriptFailedError(0, result.text)
        raise ScriptError(result.text)
    assert isinstance(result, Measurement)
    return replace(result, spawn_s=time.perf_counter() - asked_s - result.took_s)


def _last_line(error: Exception) -> str:
    return str(error).strip().splitlines()[-1].rstrip(". ")


def workload_of(
    measurements: Sequence[Measurement],
    holdings: Sequence[Holding],
    identity: str,
    frameworks: tuple[str, ...],
) -> Workload:
    """The policy's view of the measurements, one per kind of node."""
    first = measurements[0]
    fit = Fit(
        global_batch=first.global_batch,
        steps=first.steps or UNKNOWN_STEPS,
        epochs=first.epochs,
        validation_steps=first.validation_steps,
        early_stopping=first.early_stopping,
    )
    return Workload(
        fingerprint=identity,
        framework="tf_keras" if "tf_keras" in frameworks else "keras",
        exactness="statistical" if first.random_layers else "exact",
        n_params=first.n_params,
        payload_bytes=first.payload_bytes,
        n_tensors=first.n_tensors,
        fits=(fit,),
        node_kinds=tuple(
            _speed(measurement, holding)
            for measurement, holding in zip(measurements, holdings, strict=True)
        ),
        setup_s=max(measurement.setup_s for measurement in measurements),
        startup_s=max(measurement.startup_s for measurement in measurements) or None,
        max_workers=first.max_workers,
        n_batch_norms=first.n_batch_norms,
        n_slices=first.n_slices,
        uses_fit=first.uses_fit,
        max_workers_reason=first.max_workers_reason,
        rounding=first.random_layers,
        layers=model_layers(
            [each.layers for each in measurements], [each.node for each in holdings]
        ),
    )


def _speed(measurement: Measurement, holding: Holding) -> KindSpeed:
    c0_s, c1_s = step_line(measurement.batch_rows, measurement.step_s)
    cpus = min(holding.cpus, holding.node.usable_cpus)
    return KindSpeed(holding.node.kind, c0_s, c1_s, cpus, holding.gpus)


def step_line(rows: Sequence[int], step_s: Sequence[float]) -> tuple[float, float]:
    """c0 and c1 of step = c0 + c1 · rows through the measured points; both at least 0.

    With one point (a batch of one row) everything counts as c0.
    """
    if len(rows) == 1 or rows[0] == rows[1]:
        return step_s[0], 0.0
    c1_s = (step_s[0] - step_s[1]) / (rows[0] - rows[1])
    if c1_s <= 0:  # noise: a smaller batch was not faster
        return min(step_s), 0.0
    c0_s = step_s[0] - c1_s * rows[0]
    return (c0_s, c1_s) if c0_s >= 0 else (0.0, step_s[0] / rows[0])

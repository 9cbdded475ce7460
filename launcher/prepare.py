"""Measure before deciding: the cluster, its network and the script, side by side in time."""

import importlib.metadata
import logging
import platform
import re
import tokenize
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from launcher.archive import pack
from launcher.budget import Meter
from launcher.checkup import Checkup, checkup
from launcher.cluster import Cluster
from launcher.config import Environment, Request
from launcher.errors import ScriptError, UsageError
from launcher.node_agents import NodeAgents
from launcher.preflight import Script, check_script
from launcher.probe import probe
from launcher.profiler import Bring, Holding, ProfileCache, fingerprint, no_data, profile
from launcher.script_needs import ScriptNeeds, argument_paths, script_needs
from launcher.side_by_side import side_by_side
from launcher.stored import Shipped
from launcher.worker.job import Job
from launcher.worker.staging.wanted import DataPlace
from policies.candidates import pools
from policies.schema import Network, Node, Workload

logger = logging.getLogger(__name__)

T = TypeVar("T")
PROBE_DEADLINE_S = 15.0


@dataclass(frozen=True, slots=True)
class Measured:
    """What was learned before the decision."""

    network: Network
    workload: Workload
    profile_remembered: bool
    checkup: Checkup = field(default_factory=Checkup)


def versions() -> dict[str, str]:
    """What a measurement and a result depend on."""
    names = ("ray", "tensorflow", "keras", "tf_keras")
    found = {name: importlib.metadata.version(name) for name in names}
    return found | {
        "python": platform.python_version(),
        "launch": importlib.metadata.version("train-launcher"),
    }


def make_job(request: Request, shipped: Shipped, run: str, archive: Any) -> Job:
    """The job as all segments share it; `archive` refers to the zipped folder."""
    return Job(
        run=run,
        archive=archive,
        script=shipped.script,
        shown_root=shipped.shown_root,
        argv0=shipped.argv0,
        args=request.args,
        kind=shipped.kind,
        frameworks=shipped.frameworks,
        seed=request.seed,
        checkpoint_every_s=request.checkpoint_every_s,
        hints=shipped.hints,
        parallel_draws=shipped.parallel_draws,
        params=request.params,
        parallelism=request.parallelism,
    )


def ship(request: Request, environment: Environment, warn: Callable[[str], None]) -> Shipped:
    """Check the script and pack its folder.

    Raises:
        ScriptError: the script cannot be trained, or its folder is too large.
    """
    script = check_script(
        request.script,
        environment.cwd,
        home=environment.home,
        legacy_keras=environment.tf_use_legacy_keras,
    )
    if request.strategy in ("direct", "decentralized") and script.kind != "fit":
        raise UsageError(
            f"--strategy {request.strategy}: {script.name} brings a train_loop_per_worker, which "
            "exchanges gradients by itself. Leave --strategy out, or call model.fit in the script."
        )
    if request.parallelism == "model" and (
        script.kind != "fit" or "keras" not in script.frameworks
    ):
        raise UsageError(
            f"--parallelism model splits models of Keras 3 in model.fit, and {script.name} "
            f"{_instead(script)}. Leave --parallelism out."
        )
    archive = pack(script.root, request)
    for text in archive.warnings:
        warn(text)
    return Shipped(
        content=archive.content,
        fingerprint=archive.fingerprint,
        script=script.name,
        shown_root=str(script.root),
        argv0=_typed(request, environment),
        kind=script.kind,
        frameworks=_frameworks(script),
        hints=script.hints,
        parallel_draws=script.parallel_draws,
        ignored=archive.ignored,
    )


def _instead(script: Script) -> str:
    """What a script has that cannot be trained in stages."""
    return "brings a train_loop_per_worker" if script.kind != "fit" else "uses tf_keras"


def holdings(cluster: Cluster, request: Request) -> tuple[Holding, ...]:
    """One node of each kind that could train, with what a worker would hold on it alone.

    Raises:
        UsageError: no node has what a worker was asked to hold.
    """
    found: dict[str, Holding] = {}
    for pool in pools(cluster.nodes, request.limits):
        for node in pool.nodes:
            if node.kind not in found:
                options = pool.options({node.id: 1})
                found[node.kind] = Holding(node, options.cpus_per_worker, options.gpus_per_worker)
    if not found:
        most_cpus = max((node.cpus for node in cluster.nodes), default=0.0)
        most_gpus = max((node.gpus for node in cluster.nodes), default=0.0)
        raise UsageError(
            f"No node has {_asked(request)} free for a worker: the largest has {most_cpus:g} CPUs, "
            f"the one with most GPUs {most_gpus:g}. Ask for less, or add such a node."
        )
    return tuple(found.values())


def _asked(request: Request) -> str:
    """What was asked for one worker, in words."""
    asked = {"CPUs": request.cpus_per_worker, "GPUs": request.gpus_per_worker}
    words = [f"{value:g} {name}" for name, value in asked.items() if value is not None]
    return " and ".join(words) or "a CPU"


def measure(
    cluster: Cluster,
    request: Request,
    job: Job,
    shipped: Shipped,
    environment: Environment,
    meter: Meter,
    stage: Callable[[str], None],
    bring: Bring = no_data,
) -> Measured:
    """Check the nodes, then measure the network between them, then profile the script.

    One after the other, for each disturbs the next where nodes have few cores: a map measured
    beside an import of TensorFlow shows the processor's delays for the network's. And the check
    tells nodes apart that only look alike: two of one kind may be allowed to compute at
    different speeds. A lone node has no network: its script is profiled at once.

    Args:
        shipped: the script and its folder.
        meter: starts counting the nodes that profiling holds.
        bring: brings the run's data to the nodes that profile, once the network is measured.

    Raises:
        ScriptFailedError: the script raised before its first step.
        ScriptError: the script cannot be trained.
        ClusterError: a node died meanwhile, or no node is fit to train.
    """
    checked: Future[Checkup] = Future()
    probed: Future[Network] = Future()
    agents = NodeAgents(cluster.nodes)
    if len(cluster.nodes) > 1:
        stage(f"checking {len(cluster.nodes):,} nodes and measuring the network between them")

    def probe_when_checked() -> Network:
        return _probe(cluster, environment, lambda: wait([checked]), agents)

    def profile_when_quiet() -> tuple[Workload, bool]:
        fit = checked.result().fit_part(cluster)
        if len(cluster.nodes) > 1:
            probed.result()
            agents.stop()
        return _profile(fit, request, job, shipped, environment, meter, stage, bring)

    with agents:
        network, (workload, remembered), found = side_by_side(
            [
                lambda: _told(probed, probe_when_checked),
                profile_when_quiet,
                lambda: _told(
                    checked, lambda: _check(cluster, request, shipped, environment, agents)
                ),
            ]
        )
    return Measured(_without(network, found.reasons_by_node.keys()), workload, remembered, found)


def _told(future: "Future[T]", action: Callable[[], T]) -> T:
    """Do it; whoever waits for the future gets the result, or the error."""
    try:
        result = action()
    except BaseException as error:
        future.set_exception(error)
        raise
    future.set_result(result)
    return result


def _without(network: Network, nodes: Collection[str]) -> Network:
    """The map without these nodes."""
    return replace(
        network,
        links=tuple(link for link in network.links if not {link.src, link.dst} & {*nodes}),
        interfaces=tuple(each for each in network.interfaces if each.node not in nodes),
        silent=tuple(node for node in network.silent if node not in nodes),
    )


def _profile(
    cluster: Cluster,
    request: Request,
    job: Job,
    shipped: Shipped,
    environment: Environment,
    meter: Meter,
    stage: Callable[[str], None],
    bring: Bring,
) -> tuple[Workload, bool]:
    cache = ProfileCache(environment.state_dir / "profiles")
    held = holdings(cluster, request)
    fingerprints = [fingerprint(shipped.fingerprint, job, versions(), each) for each in held]
    if any(cache.load(each) is None for each in fingerprints):
        meter.hold([each.node for each in held])

    def brought(nodes: Sequence[Node]) -> Mapping[str, DataPlace]:
        places = bring(nodes)
        stage("profiling: running the script up to its first steps")
        return places

    return profile(job, held, fingerprints, cache, brought)


def _check(
    cluster: Cluster,
    request: Request,
    shipped: Shipped,
    environment: Environment,
    agents: NodeAgents,
) -> Checkup:
    cache = environment.state_dir / "checkups.json"
    return checkup(cluster, needs_of(request, shipped), cache=cache, agents=agents)


def needs_of(request: Request, shipped: Shipped) -> ScriptNeeds:
    """What the script needs; by its arguments alone where it is no longer on this machine."""
    root = Path(shipped.shown_root)
    try:
        return script_needs(root / shipped.script, root, request.args)
    except ScriptError:
        return ScriptNeeds(paths=tuple(argument_paths(request.args)))


def _probe(
    cluster: Cluster, environment: Environment, quiet: Callable[[], object], agents: NodeAgents
) -> Network:
    return probe(
        cluster,
        deadline_s=PROBE_DEADLINE_S,
        progress=lambda text: logger.info("%s", text),
        cache=environment.state_dir / "network.json",
        quiet=quiet,
        agents=agents,
    )


def _frameworks(script: Script) -> tuple[str, ...]:
    """The frameworks to expect in the workers.

    `tf.keras` in a `train_loop_per_worker` means legacy Keras, as Ray Train's back end has it:
    plain Keras 3 does not train under the strategy that such a function makes.
    """
    with tokenize.open(script.path) as source:  # in the encoding that it declares
        names_keras = re.search(r"^\s*(import|from) keras\b", source.read(), re.M)
    if script.kind == "train_loop_per_worker" and not names_keras:
        return ("tf_keras",)
    return script.frameworks


def _typed(request: Request, environment: Environment) -> str:
    """The script as a person would type it from where launch was called."""
    if request.script.is_relative_to(environment.cwd):
        return str(request.script.relative_to(environment.cwd))
    return str(request.script)

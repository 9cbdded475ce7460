"""`launch doctor`: look at every node and the storage, with a script's needs in mind."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.checkup import examine
from launcher.cluster import all_nodes, connect, disconnect
from launcher.config import Environment, absolute
from launcher.diagnosis import Findings, diagnose
from launcher.errors import StorageError
from launcher.preflight import check_script
from launcher.problem import Problem
from launcher.script_needs import ScriptNeeds, argument_paths, script_needs
from launcher.storage import Storage

UNFIT_EXIT_CODE = 4


@dataclass(frozen=True, slots=True)
class Report:
    """What the doctor found; `storage_error` says why storage cannot be written."""

    how: str
    found: Findings
    problems: tuple[Problem, ...]
    storage: str
    storage_error: str | None

    @property
    def n_unfit(self) -> int:
        """How many nodes cannot train."""
        return len({problem.node for problem in self.problems if problem.level == "fail"})

    @property
    def exit_code(self) -> int:
        """0 if every node and the storage are fit."""
        return UNFIT_EXIT_CODE if self.n_unfit or self.storage_error else 0


def examine_script(
    script: str | None, args: Sequence[str], environment: Environment
) -> ScriptNeeds:
    """What the script needs, as it was typed; nothing without one.

    Raises:
        ScriptError: it cannot be trained as it is.
    """
    if script is None:
        return ScriptNeeds(paths=tuple(argument_paths(args)))
    checked = check_script(
        absolute(script, environment),
        environment.cwd,
        home=environment.home,
        legacy_keras=environment.tf_use_legacy_keras,
    )
    return script_needs(checked.path, checked.root, args)


def see_cluster(
    address: str | None,
    ray_address: str | None,
    needs: ScriptNeeds,
    storage_uri: str,
    *,
    log_dir: Path,
    progress: Callable[[str], None],
) -> Report:
    """Connect, check all living nodes and the storage. Blocks for a few seconds.

    Args:
        address: `--address`, and `ray_address` of the environment, as in `cluster.connect`.
        needs: what the script needs, if one was named.
        storage_uri: where runs would be kept.
        log_dir: for what Ray says.
        progress: is told in a few words what is going on.

    Raises:
        ClusterError: the cluster cannot be reached.
    """
    progress("connecting to Ray")
    cluster = connect(
        address,
        ray_address,
        price_usd_per_h=0.0,  # a wrong label is no matter here
        temp_dir=None,
        log_dir=log_dir,
        need_nodes=False,
    )
    try:
        found = examine(all_nodes(cluster), needs, progress=progress)
    finally:
        disconnect(cluster)
    progress("writing to the storage")
    error = _storage_error(storage_uri)
    return Report(cluster.how, found, diagnose(found, needs), storage_uri, error)


def _storage_error(uri: str) -> str | None:
    """Why runs cannot be kept there."""
    try:
        Storage.open(uri).check_writable()
    except StorageError as error:
        return str(error)
    return None

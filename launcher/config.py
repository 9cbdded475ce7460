"""What the user asked for: the request, and each option's value by flag or `LAUNCH_*` variable.

The only module that reads the environment. Flags win over variables, variables over defaults;
`--budget` has `LAUNCH_BUDGET`, `--max-workers` has `LAUNCH_MAX_WORKERS`, and so on.
"""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeVar

from launcher import quantities as q
from launcher.budget import Upkeep
from launcher.data_words import parse_data, site_uris
from launcher.errors import UsageError
from launcher.worker.environment import environment
from policies.schema import Asynchrony, Limits, Objective, Parallelism, Strategy

T = TypeVar("T")

DEFAULT_EXPLORE = 0.02
DEFAULT_ASYNCHRONY = Asynchrony()
STRATEGIES = ("auto", "allreduce", "direct", "decentralized")
DEFAULT_MAX_FOLDER_BYTES = 500 * 2**20
NOT_RECORDED = {"record": False}  # metadata of a field that a run record leaves out


@dataclass(frozen=True, slots=True)
class Flags:
    """The command line's words as typed; None means "not given".

    A field's name is its flag's, and with `LAUNCH_` in front its variable's.
    """

    budget: str | None = None
    deadline: str | None = None
    objective: str | None = None
    workers: str | None = None
    max_workers: str | None = None
    strategy: str | None = None
    parallelism: str | None = None
    cpus_per_worker: str | None = None
    gpus_per_worker: str | None = None
    address: str | None = None
    cluster: str | None = None
    down_when_done: bool | None = None
    storage: str | None = None
    data: Sequence[str] | None = None
    data_price: str | None = None
    cache: str | None = None
    cache_size: str | None = None
    name: str | None = None
    price: str | None = None
    checkpoint_every: str | None = None
    sync_batchnorm: bool | None = None
    allow_approximate: bool | None = None
    max_staleness: str | None = None
    transfer_every: str | None = None
    transfer_part: str | None = None
    explore: str | None = None
    max_folder: str | None = None
    wait: str | None = None
    dry_run: bool | None = None
    detach: bool | None = None
    yes: bool | None = None
    json: bool | None = None
    seed: str | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """What the process inherits that matters here. It is never recorded.

    Attributes:
        launch: the `LAUNCH_*` variables, by name.
        credentials: variables by which object stores know a user.
        home: the user's home folder.
        cwd: the folder that `launch` was called in.
    """

    home: Path
    cwd: Path
    launch: Mapping[str, str] = field(default_factory=dict)
    tf_config: str | None = None
    ray_address: str | None = None
    keras_backend: str | None = None
    tf_use_legacy_keras: bool = False
    no_byte_code: bool = False
    no_color: bool = False
    path: str = ""
    credentials: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def state_dir(self) -> Path:
        """`~/.launch`: the index of runs, caches and logs of this machine's user."""
        return self.home / ".launch"

    @classmethod
    def read(
        cls, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> "Environment":
        """Read the environment of this process (or the one given).

        Raises:
            UsageError: the current folder is gone, or there is no home folder.
        """
        env = environment() if environ is None else environ
        return cls(
            home=_home(env),
            cwd=cwd or _cwd(),
            launch={k: v for k, v in env.items() if k.startswith("LAUNCH_") and v.strip()},
            tf_config=env.get("TF_CONFIG") or None,
            ray_address=env.get("RAY_ADDRESS") or None,
            keras_backend=env.get("KERAS_BACKEND") or None,
            tf_use_legacy_keras=env.get("TF_USE_LEGACY_KERAS", "").lower() in q.TRUE_WORDS,
            no_byte_code=bool(env.get("PYTHONDONTWRITEBYTECODE")),
            no_color=bool(env.get("NO_COLOR")),
            path=env.get("PATH", ""),
            credentials={k: v for k, v in env.items() if k.startswith(("AWS_", "GOOGLE_"))},
        )


def _home(env: Mapping[str, str]) -> Path:
    try:
        return Path(env.get("HOME") or Path.home())
    except RuntimeError:  # a container's user that nobody knows
        raise UsageError(
            "HOME is not set, and this user has no home folder. Set HOME to a folder that can be "
            "written."
        ) from None


def _cwd() -> Path:
    try:
        return Path.cwd()
    except OSError as error:
        raise UsageError(
            f"The current folder cannot be used: {error.strerror}. Go to one that exists: cd"
        ) from None


@dataclass(frozen=True, slots=True)
class Terminal:
    """Which of the standard streams are terminals."""

    stdin_is_tty: bool = False
    stdout_is_tty: bool = False
    stderr_is_tty: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """What one launch was asked to do. `None` means no limit, or: choose freely.

    Attributes:
        script: absolute path of the user's script.
        args: the script's own arguments.
        storage: a pyarrow filesystem URI, or an absolute path.
        data: absolute paths and URIs, which may carry passwords, or `SITE=URI`: see `data_words`.
        data_price_usd_per_gb: what the data's provider charges on their way out.
        cache: folder for data on every node; None: `~/.launch/data`.
        seed: of the script's random generators and of the policy.
        params: the script's `$LAUNCH_PARAMS`, a JSON object.
        nodes: the only nodes to train on, by address or id; empty for all.
        wait_s: how long to wait for nodes that other jobs hold.
        allow_approximate: whether plans may change the learning curve.
        upkeep: of the cluster, where it was brought up for this run.
    """

    script: Path
    args: tuple[str, ...] = ()
    budget_usd: float | None = None
    deadline_s: float | None = None
    objective: Objective = "time"
    workers: int | None = None
    max_workers: int | None = None
    strategy: Strategy | None = None
    parallelism: Parallelism = "data"
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    address: str | None = None
    ray_address: str | None = field(default=None, metadata=NOT_RECORDED)
    storage: str = ""
    data: tuple[str, ...] = field(default=(), repr=False)
    data_price_usd_per_gb: float | None = None
    cache: str | None = None
    cache_size_bytes: int | None = None
    name: str | None = None
    price_usd_per_h: float | None = None
    checkpoint_every_s: float | None = None  # as their measured cost allows
    sync_batchnorm: bool = False
    allow_approximate: bool = False
    asynchrony: Asynchrony = DEFAULT_ASYNCHRONY
    explore: float = DEFAULT_EXPLORE
    max_folder_bytes: int = DEFAULT_MAX_FOLDER_BYTES
    seed: int = 0
    params: str | None = None
    nodes: tuple[str, ...] = field(default=(), metadata=NOT_RECORDED)
    wait_s: float = field(default=0.0, metadata=NOT_RECORDED)
    upkeep: Upkeep | None = field(default=None, metadata=NOT_RECORDED)
    dry_run: bool = field(default=False, metadata=NOT_RECORDED)
    detach: bool = field(default=False, metadata=NOT_RECORDED)
    yes: bool = field(default=False, metadata=NOT_RECORDED)
    json: bool = field(default=False, metadata=NOT_RECORDED)
    stdin_is_tty: bool = field(default=False, metadata=NOT_RECORDED)
    stdout_is_tty: bool = field(default=False, metadata=NOT_RECORDED)
    stderr_is_tty: bool = field(default=False, metadata=NOT_RECORDED)

    @property
    def limits(self) -> Limits:
        """The part of the request that the policy needs."""
        return Limits(
            budget_usd=self.budget_usd,
            deadline_s=self.deadline_s,
            objective=self.objective,
            workers=self.workers,
            max_workers=self.max_workers,
            strategy=self.strategy,
            parallelism=self.parallelism,
            cpus_per_worker=self.cpus_per_worker,
            gpus_per_worker=self.gpus_per_worker,
            explore=self.explore,
            sync_batchnorm=self.sync_batchnorm,
            allow_approximate=self.allow_approximate,
            asynchrony=replace(self.asynchrony, own_data=bool(site_uris(self.data))),
        )


def make_storage(flag: str | None, environment: Environment) -> str:
    """The storage that `--storage` or `LAUNCH_STORAGE` names, default `~/launch`."""
    value = flag if flag is not None else environment.launch.get("LAUNCH_STORAGE")
    if value is None:
        return str(environment.home / "launch")
    if not value.strip():
        raise UsageError("--storage is empty. Name a folder or a URI such as s3://bucket/launch.")
    q.refuse_relative_uri(value, "--storage")
    if re.match(r"^[A-Za-z][A-Za-z0-9+.-]+://", value):
        return value.rstrip("/") if not value.endswith("://") else value
    return str(absolute(value, environment))


def has_storage(flags: Flags, environment: Environment) -> bool:
    """Whether storage was asked for, by the flag or the variable."""
    return flags.storage is not None or "LAUNCH_STORAGE" in environment.launch


def cluster_options(flags: Flags, environment: Environment) -> tuple[str | None, float | None]:
    """The address and the price (US dollars an hour) that are asked for, if any."""
    return (
        _option(flags, environment, "address", q.parse_text, None),
        _option(flags, environment, "price", q.parse_price_usd_per_h, None),
    )


def far_options(flags: Flags, environment: Environment) -> tuple[str | None, bool]:
    """The file of the cluster that a run goes to, and whether that goes down afterwards."""
    return (
        _option(flags, environment, "cluster", q.parse_text, None),
        _switch(flags, environment, "down_when_done"),
    )


def parse_options(
    flags: Flags, environment: Environment, draw_seed: Callable[[], int]
) -> dict[str, Any]:
    """Every option's value by its field of the request."""

    def option(name: str, parse: Callable[[str, str], T], default: T) -> T:
        return _option(flags, environment, name, parse, default)

    seed = option("seed", q.parse_seed, None)
    return {
        "budget_usd": option("budget", q.parse_budget_usd, None),
        "deadline_s": option("deadline", q.parse_duration_s, None),
        "objective": option("objective", q.one_of("time", "cost"), "time"),
        "workers": option("workers", q.parse_auto_workers, None),
        "max_workers": option("max_workers", q.parse_workers, None),
        "strategy": _chosen(option("strategy", q.one_of(*STRATEGIES), "auto")),
        "asynchrony": Asynchrony(
            option("max_staleness", q.parse_staleness, DEFAULT_ASYNCHRONY.max_staleness),
            option("transfer_every", q.parse_period, DEFAULT_ASYNCHRONY.transfer_every_steps),
            option("transfer_part", q.parse_part, DEFAULT_ASYNCHRONY.merge),
        ),
        "parallelism": option("parallelism", q.one_of("data", "model", "auto"), "data"),
        "cpus_per_worker": option("cpus_per_worker", q.parse_positive, None),
        "gpus_per_worker": option("gpus_per_worker", q.parse_not_negative, None),
        "address": option("address", q.parse_text, None),
        "storage": make_storage(flags.storage, environment),
        "data": parse_data(
            flags.data or (),
            environment.launch.get("LAUNCH_DATA", ""),
            lambda path: absolute(path, environment),
        ),
        "data_price_usd_per_gb": option("data_price", q.parse_price_usd_per_gb, None),
        "cache": _absolute_option(flags, environment, "cache"),
        "cache_size_bytes": option("cache_size", q.parse_bytes, None),
        "name": option("name", q.parse_run_name, None),
        "price_usd_per_h": option("price", q.parse_price_usd_per_h, None),
        "checkpoint_every_s": option("checkpoint_every", q.parse_duration_s, None),
        "explore": option("explore", q.parse_fraction, DEFAULT_EXPLORE),
        "max_folder_bytes": option("max_folder", q.parse_bytes, DEFAULT_MAX_FOLDER_BYTES),
        "wait_s": option("wait", q.parse_duration_s, 0.0),
        "seed": draw_seed() if seed is None else seed,
        "params": _params(environment),
        **{
            name: _switch(flags, environment, name)
            for name in ("sync_batchnorm", "allow_approximate", "dry_run", "detach", "yes", "json")
        },
    }


def _params(environment: Environment) -> str | None:
    """What the script is to find in `$LAUNCH_PARAMS`."""
    text = environment.launch.get("LAUNCH_PARAMS")
    return None if text is None else q.parse_json_object(text, "LAUNCH_PARAMS")


def _option(
    flags: Flags,
    environment: Environment,
    name: str,
    parse: Callable[[str, str], T],
    default: T,
) -> T:
    """One option: the flag, else its variable, else the default."""
    flag = getattr(flags, name)
    if flag is not None:
        return parse(flag, f"--{name.replace('_', '-')}")
    variable = f"LAUNCH_{name.upper()}"
    if variable in environment.launch:
        return parse(environment.launch[variable], variable)
    return default


def _switch(flags: Flags, environment: Environment, name: str) -> bool:
    """One on/off option."""
    flag: bool | None = getattr(flags, name)
    if flag is not None:
        return flag
    variable = f"LAUNCH_{name.upper()}"
    return q.parse_switch(environment.launch.get(variable, "0"), variable)


def _absolute_option(flags: Flags, environment: Environment, name: str) -> str | None:
    """A path on every node: absolute, with `~` as it is there."""
    path = _option(flags, environment, name, q.parse_text, None)
    if path is not None and not path.startswith(("/", "~/")):
        raise UsageError(
            f"--{name.replace('_', '-')} {path} is a folder on every node: begin it with / or ~/."
        )
    return path


def _chosen(word: str) -> str | None:
    """`auto` means: choose freely."""
    return None if word == "auto" else word


def absolute(path: str, environment: Environment) -> Path:
    """An absolute path, `~` and the working directory resolved, symlinks kept."""
    if path == "~" or path.startswith("~/"):
        path = str(environment.home) + path[1:]
    return Path(os.path.normpath(environment.cwd / path))


def variable_names() -> tuple[str, ...]:
    """The environment variables that stand for flags, for the help text."""
    return tuple(f"LAUNCH_{f.name.upper()}" for f in fields(Flags))

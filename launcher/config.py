"""The request: what the user asked for, from flags and `LAUNCH_*` environment variables.

The only module that reads the environment. Flags win over variables, variables over defaults;
`--budget` has `LAUNCH_BUDGET`, `--max-workers` has `LAUNCH_MAX_WORKERS`, and so on.
"""

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any, TypeVar

from launcher import quantities as q
from launcher.errors import UsageError
from policies.schema import Limits, Objective, Strategy

T = TypeVar("T")

DEFAULT_CHECKPOINT_EVERY_S = 60.0
DEFAULT_EXPLORE = 0.02
DEFAULT_MAX_FOLDER_BYTES = 500 * 2**20
NOT_RECORDED = {"record": False}  # metadata of a field that a run record leaves out


_FIELD_BY_OPTION = {
    "budget": "budget_usd",
    "deadline": "deadline_s",
    "price": "price_usd_per_h",
    "checkpoint_every": "checkpoint_every_s",
    "max_folder": "max_folder_bytes",
}


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
    cpus_per_worker: str | None = None
    gpus_per_worker: str | None = None
    address: str | None = None
    storage: str | None = None
    name: str | None = None
    price: str | None = None
    checkpoint_every: str | None = None
    sync_batchnorm: bool | None = None
    explore: str | None = None
    max_folder: str | None = None
    dry_run: bool | None = None
    yes: bool | None = None
    json: bool | None = None
    seed: str | None = None


@dataclass(frozen=True, slots=True)
class Environment:
    """What the process inherits that matters here. It is never recorded.

    Attributes:
        launch: the `LAUNCH_*` variables, by name.
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

    @property
    def state_dir(self) -> Path:
        """`~/.launch`: the index of runs, caches and logs of this machine's user."""
        return self.home / ".launch"

    @classmethod
    def read(
        cls, environ: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> "Environment":
        """Read the environment of this process (or the one given)."""
        env = os.environ if environ is None else environ
        return cls(
            home=Path(env.get("HOME") or Path.home()),
            cwd=cwd or Path.cwd(),
            launch={k: v for k, v in env.items() if k.startswith("LAUNCH_") and v.strip()},
            tf_config=env.get("TF_CONFIG") or None,
            ray_address=env.get("RAY_ADDRESS") or None,
            keras_backend=env.get("KERAS_BACKEND") or None,
            tf_use_legacy_keras=env.get("TF_USE_LEGACY_KERAS", "").lower() in q.TRUE_WORDS,
            no_byte_code=bool(env.get("PYTHONDONTWRITEBYTECODE")),
            no_color=bool(env.get("NO_COLOR")),
            path=env.get("PATH", ""),
        )


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
        seed: of the script's random generators and of the policy.
    """

    script: Path
    args: tuple[str, ...] = ()
    budget_usd: float | None = None
    deadline_s: float | None = None
    objective: Objective = "time"
    workers: int | None = None
    max_workers: int | None = None
    strategy: Strategy | None = None
    cpus_per_worker: float | None = None
    gpus_per_worker: float | None = None
    address: str | None = None
    ray_address: str | None = field(default=None, metadata=NOT_RECORDED)
    storage: str = ""
    name: str | None = None
    price_usd_per_h: float | None = None
    checkpoint_every_s: float = DEFAULT_CHECKPOINT_EVERY_S
    sync_batchnorm: bool = False
    explore: float = DEFAULT_EXPLORE
    max_folder_bytes: int = DEFAULT_MAX_FOLDER_BYTES
    seed: int = 0
    dry_run: bool = field(default=False, metadata=NOT_RECORDED)
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
            cpus_per_worker=self.cpus_per_worker,
            gpus_per_worker=self.gpus_per_worker,
            explore=self.explore,
        )


def make_request(
    script: str,
    args: tuple[str, ...],
    flags: Flags,
    environment: Environment,
    *,
    draw_seed: Callable[[], int],
    terminal: Terminal | None = None,
) -> Request:
    """Join flags, variables and defaults into a request.

    Args:
        script: as typed; relative to the environment's `cwd`.
        args: the script's own arguments.
        flags: the command line.
        environment: where variables come from.
        draw_seed: gives a seed when none was asked for.
        terminal: which streams are terminals; none if not given.

    Raises:
        UsageError: a value makes no sense, or the environment rules out a run.
    """
    _refuse_environment(environment)
    streams = terminal or Terminal()
    request = Request(
        script=_absolute(script, environment),
        args=args,
        ray_address=environment.ray_address,
        stdin_is_tty=streams.stdin_is_tty,
        stdout_is_tty=streams.stdout_is_tty,
        stderr_is_tty=streams.stderr_is_tty,
        **_parse_options(flags, environment, draw_seed),
    )
    _check_together(request)
    return request


def resume_request(
    request: Request,
    flags: Flags,
    environment: Environment,
    *,
    run: str,
    spent_usd: float,
    stopped_at_budget: bool = False,
    terminal: Terminal | None = None,
) -> Request:
    """The request of a stretch that goes on with a run: its own, changed by what is given now.

    Without a new budget, what is left of the run's own counts.

    Raises:
        UsageError: the run's budget is used up and no new one is given.
    """
    _refuse_environment(environment)
    streams = terminal or Terminal()
    parsed = _parse_options(flags, environment, lambda: request.seed)
    given = {
        _FIELD_BY_OPTION.get(name, name)
        for name in (each.name for each in fields(Flags))
        if getattr(flags, name) is not None or f"LAUNCH_{name.upper()}" in environment.launch
    }
    changed = replace(
        request,
        **{name: parsed[name] for name in given - {"storage", "name"}},
        ray_address=environment.ray_address,
        stdin_is_tty=streams.stdin_is_tty,
        stdout_is_tty=streams.stdout_is_tty,
        stderr_is_tty=streams.stderr_is_tty,
    )
    _check_together(changed)
    if "budget_usd" in given or request.budget_usd is None:
        return changed
    left_usd = request.budget_usd - spent_usd
    if stopped_at_budget or left_usd < 0.01 * request.budget_usd:
        raise UsageError(
            f"{run} has used its budget of ${request.budget_usd:,.2f}. Say how much more it may "
            f"cost: launch resume {run} --budget {request.budget_usd:g}"
        )
    return replace(changed, budget_usd=left_usd)


def make_storage(flag: str | None, environment: Environment) -> str:
    """The storage that `--storage` or `LAUNCH_STORAGE` names, default `~/launch`."""
    value = flag if flag is not None else environment.launch.get("LAUNCH_STORAGE")
    if value is None:
        return str(environment.home / "launch")
    if not value.strip():
        raise UsageError("--storage is empty. Name a folder or a URI such as s3://bucket/launch.")
    if re.match(r"^[A-Za-z][A-Za-z0-9+.-]+://", value):
        return value.rstrip("/") if not value.endswith("://") else value
    return str(_absolute(value, environment))


def cluster_options(flags: Flags, environment: Environment) -> tuple[str | None, float | None]:
    """The address and the price (US dollars an hour) that are asked for, if any."""
    return (
        _option(flags, environment, "address", q.parse_text, None),
        _option(flags, environment, "price", q.parse_price_usd_per_h, None),
    )


def _parse_options(
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
        "strategy": _chosen(option("strategy", q.one_of("auto", "allreduce"), "auto")),
        "cpus_per_worker": option("cpus_per_worker", q.parse_positive, None),
        "gpus_per_worker": option("gpus_per_worker", q.parse_not_negative, None),
        "address": option("address", q.parse_text, None),
        "storage": make_storage(flags.storage, environment),
        "name": option("name", q.parse_run_name, None),
        "price_usd_per_h": option("price", q.parse_price_usd_per_h, None),
        "checkpoint_every_s": option(
            "checkpoint_every", q.parse_duration_s, DEFAULT_CHECKPOINT_EVERY_S
        ),
        "explore": option("explore", q.parse_fraction, DEFAULT_EXPLORE),
        "max_folder_bytes": option("max_folder", q.parse_bytes, DEFAULT_MAX_FOLDER_BYTES),
        "seed": draw_seed() if seed is None else seed,
        **{
            name: _switch(flags, environment, name)
            for name in ("sync_batchnorm", "dry_run", "yes", "json")
        },
    }


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


def _chosen(word: str) -> str | None:
    """`auto` means: choose freely."""
    return None if word == "auto" else word


def _absolute(path: str, environment: Environment) -> Path:
    """An absolute path, `~` and the working directory resolved, symlinks kept."""
    if path == "~" or path.startswith("~/"):
        path = str(environment.home) + path[1:]
    return Path(os.path.normpath(environment.cwd / path))


def _refuse_environment(environment: Environment) -> None:
    if environment.tf_config is not None:
        raise UsageError(
            f"TF_CONFIG is already set ({_short(environment.tf_config)}). launch sets it for each "
            "worker itself: run `unset TF_CONFIG` and try again."
        )
    backend = environment.keras_backend
    if backend is not None and backend != "tensorflow":
        raise UsageError(
            f"KERAS_BACKEND is {backend!r}, and launch trains with TensorFlow only. "
            "Run `unset KERAS_BACKEND` or set it to tensorflow."
        )
    known = variable_names()
    for name in environment.launch:
        close = get_close_matches(name, known, n=1, cutoff=0.85)
        if name not in known and close:
            raise UsageError(f"The variable {name} is not known. Did you mean {close[0]}?")


def _check_together(request: Request) -> None:
    """Refuse options that contradict each other."""
    workers, most = request.workers, request.max_workers
    if workers is not None and most is not None and workers > most:
        raise UsageError(
            f"--workers {workers} is more than --max-workers {most}. Leave one of them out."
        )


def _short(text: str, length: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"


def variable_names() -> tuple[str, ...]:
    """The environment variables that stand for flags, for the help text."""
    return tuple(f"LAUNCH_{f.name.upper()}" for f in fields(Flags))

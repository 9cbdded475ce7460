"""Makes the request of a run: flags and variables joined, contradictions refused."""

from collections.abc import Callable
from dataclasses import fields, replace
from difflib import get_close_matches

from launcher.config import (
    DEFAULT_ASYNCHRONY,
    Environment,
    Flags,
    Request,
    Terminal,
    absolute,
    parse_options,
    variable_names,
)
from launcher.data_words import site_uris
from launcher.errors import UsageError

_FIELD_BY_OPTION = {
    "budget": "budget_usd",
    "deadline": "deadline_s",
    "price": "price_usd_per_h",
    "checkpoint_every": "checkpoint_every_s",
    "max_folder": "max_folder_bytes",
    "data_price": "data_price_usd_per_gb",
    "cache_size": "cache_size_bytes",
    "wait": "wait_s",
    "max_staleness": "asynchrony",
    "transfer_every": "asynchrony",
    "transfer_part": "asynchrony",
}


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
        script=absolute(script, environment),
        args=args,
        ray_address=environment.ray_address,
        stdin_is_tty=streams.stdin_is_tty,
        stdout_is_tty=streams.stdout_is_tty,
        stderr_is_tty=streams.stderr_is_tty,
        **parse_options(flags, environment, draw_seed),
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
    parsed = parse_options(flags, environment, lambda: request.seed)
    if parsed["dry_run"]:
        raise UsageError(
            "LAUNCH_DRY_RUN is set, and a run cannot be resumed without training. Run `unset "
            "LAUNCH_DRY_RUN` and try again."
        )
    given = _fields_given(flags, environment)
    changed = replace(
        request,
        **{name: parsed[name] for name in (given & parsed.keys()) - {"storage", "name"}},
        ray_address=environment.ray_address,
        stdin_is_tty=streams.stdin_is_tty,
        stdout_is_tty=streams.stdout_is_tty,
        stderr_is_tty=streams.stderr_is_tty,
    )
    _check_together(changed)
    if "budget_usd" in given or request.budget_usd is None:
        return changed
    spent_usd = request.budget_usd if stopped_at_budget else spent_usd
    return replace(changed, budget_usd=_left_usd(run, request.budget_usd, spent_usd))


def _fields_given(flags: Flags, environment: Environment) -> set[str]:
    """Fields of a request whose option is given, by the flag or the variable."""
    return {
        _FIELD_BY_OPTION.get(name, name)
        for name in (each.name for each in fields(Flags))
        if getattr(flags, name) is not None or f"LAUNCH_{name.upper()}" in environment.launch
    }


def _left_usd(run: str, budget_usd: float, spent_usd: float) -> float:
    left_usd = budget_usd - spent_usd
    if left_usd < 0.01 * budget_usd:
        raise UsageError(
            f"{run} has used its budget of ${budget_usd:,.2f}. Say how much more it may "
            f"cost: launch resume {run} --budget {budget_usd:g}"
        )
    return left_usd


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
    own_data = site_uris(request.data)
    if own_data and request.strategy != "decentralized":
        raise UsageError(
            f"--data {own_data[0].public} is data of one site, and only under --strategy "
            "decentralized workers train on data of their own. Add it, or name data for all nodes."
        )
    if request.strategy == "decentralized" and request.sync_batchnorm:
        raise UsageError(
            "--sync-batchnorm makes every worker wait for all at each layer, and with --strategy "
            "decentralized nobody waits. Leave one of them out."
        )
    may_drift = request.strategy == "decentralized" or request.allow_approximate
    if request.asynchrony != DEFAULT_ASYNCHRONY and not may_drift:
        raise UsageError(
            "--max-staleness, --transfer-every and --transfer-part are for decentralized training. "
            "Add --strategy decentralized, or --allow-approximate."
        )
    if request.parallelism == "model" and 1 in (workers, most):
        raise UsageError(
            "--parallelism model needs two workers or more: each trains a stage of the model. "
            "Ask for more, or leave --parallelism out."
        )
    if request.parallelism == "model" and request.strategy is not None:
        raise UsageError(
            f"--strategy {request.strategy} is a way to exchange gradients, and with --parallelism "
            "model there are none to exchange. Leave one of them out."
        )
    if request.detach and request.dry_run:
        raise UsageError(
            "--dry-run ends before training begins: there is nothing to detach. Leave --detach out."
        )


def _short(text: str, length: int = 60) -> str:
    line = " ".join(text.split())
    return line if len(line) <= length else f"{line[: length - 1]}…"

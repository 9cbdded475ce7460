"""A run that is disturbed at some moment, and what became of it."""

import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.lab.disturbed import (
    ROOT,
    SCRIPT,
    DisturbedRun,
    Seen,
    disturbed_run,
    left_behind,
)
from tests.lab.faults import DRIVER, FAULTS, RELEASE_S, SPARE, Scene, prepare_storage
from tests.lab.lab import Lab

CPUS = (0.6, 0.4, 0.4, 0.4)
LIMIT_S = 300.0
START_S = 150.0
SAME = 1e-4  # relative
BY_THE_RULES = {5}  # stopped at the budget or the deadline, with a checkpoint


@dataclass(frozen=True, slots=True)
class Case:
    """One run to make.

    Attributes:
        kinds: of faults, one after another, a few steps apart.
        at_step: when the first one strikes.
        workers: as given to `--workers`.
        cpus: cores that each host may use.
    """

    kinds: tuple[str, ...]
    at_step: int
    strategy: str
    workers: str
    budget_usd: float
    epochs: int = 12
    steps_per_epoch: int = 120
    cpus: tuple[float, ...] = CPUS

    @property
    def words(self) -> list[str]:
        """Options of `launch`, and of the script."""
        options = ["--strategy", self.strategy, "--workers", self.workers]
        return [*options, "--budget", str(self.budget_usd), "--", *self.script_words]

    @property
    def script_words(self) -> list[str]:
        """Options of the script alone."""
        return ["--epochs", str(self.epochs), "--steps", str(self.steps_per_epoch)]


@dataclass(frozen=True, slots=True)
class Fate:
    """What became of a run.

    Attributes:
        trouble: what is not as it must be; empty where all is well.
        pause_s: the longest time without a step after the fault.
        steps_again: made a second time.
    """

    case: Case
    exit_code: int
    pause_s: float
    steps_again: int
    overrun_usd: float
    left: tuple[str, ...]
    trouble: str

    @property
    def is_well(self) -> bool:
        """Whether the run did all that was promised."""
        return not self.trouble and not self.left and self.overrun_usd == 0.0


def make_case(rng: np.random.Generator, kinds: Sequence[str]) -> Case:
    """A case with faults of these kinds, and everything else drawn."""
    return Case(
        tuple(kinds),
        at_step=int(rng.integers(40, 900)),
        strategy=str(rng.choice(["allreduce", "direct"])),
        workers=str(rng.choice(["2", "3", "auto"])),
        budget_usd=float(rng.choice([0.05, 0.5])),
    )


def undisturbed_curve(case: Case) -> dict[int, float]:
    """The loss of each epoch as plain Keras has it: one process, no launcher, no fault."""
    words = [sys.executable, str(ROOT / SCRIPT), *case.script_words]
    done = subprocess.run(words, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"the script by itself failed:\n{done.stderr}")
    seen = Seen()
    for line in done.stdout.splitlines():
        seen.take(line)
    return {epoch: losses[0] for epoch, losses in seen.loss_by_epoch.items()}


def fate_of(case: Case, curve: dict[int, float], seed: int, log: Path | None = None) -> Fate:
    """Make the run in a lab of its own, and look at what became of it.

    Args:
        curve: of a run that nothing happened to.
        log: what its drivers said goes there.
    """
    with lab_for_chaos(case.cpus) as lab, disturbed_run(lab, "chaos", case.words) as run:
        scene = Scene(lab, run, np.random.default_rng(seed))
        trouble, pause_s = "", 0.0
        try:
            pause_s = _disturb(scene, case)
        except (RuntimeError, AssertionError) as error:
            trouble = str(error)
        alive = [name for name in lab.names if Path(f"/proc/{lab.host(name).pid}").exists()]
        if log is not None:
            run.seen.keep(log)
            run.keep_logs(log.with_suffix(""))
        return Fate(
            case,
            run.exit_code if run.exit_code is not None else -9,
            pause_s,
            run.seen.steps_again,
            run.overrun_usd(case.budget_usd),
            tuple(left_behind(lab, alive, RELEASE_S)),
            trouble or _trouble(run, case, curve),
        )


def lab_for_chaos(cpus: Sequence[float]) -> Lab:
    """Three hosts with Ray and one that may join, and a storage that can fail."""
    return _ChaosLab(len(cpus), cpus=cpus)


class _ChaosLab(Lab):
    def __enter__(self) -> "_ChaosLab":
        super().__enter__()
        with ExitStack() as stack:
            stack.callback(self.close)
            prepare_storage(self)
            self.start_ray([name for name in self.names if name != SPARE])
            stack.pop_all()
        return self


def _disturb(scene: Scene, case: Case) -> float:
    """Let the faults strike and the run end; the longest time without a step after the first."""
    run = scene.run
    run.wait_for_steps(case.at_step, START_S)
    run.hosts_in_use()  # while storage can tell
    struck_s = time.monotonic()
    with ExitStack() as stack:
        for number, kind in enumerate(case.kinds):
            if number:
                run.wait_for_steps(len(run.seen.steps) + 10, LIMIT_S)
            fault = FAULTS[kind]
            stack.enter_context(fault.strike(scene))
            if fault.ends_driver:
                left = left_behind(scene.lab, [DRIVER], RELEASE_S)
                if left:
                    raise RuntimeError(f"held {RELEASE_S:g} s after the driver's end: {left}")
                run.resume("--budget", str(case.budget_usd))
        run.wait(LIMIT_S)
    return run.seen.pause_s(struck_s)


def _trouble(run: DisturbedRun, case: Case, curve: dict[int, float]) -> str:
    """What is not as it must be."""
    if run.exit_code not in {0, *BY_THE_RULES}:
        return f"exit code {run.exit_code}: {run.seen.lines[-1] if run.seen.lines else ''}"
    for epoch, losses in run.seen.loss_by_epoch.items():
        for loss in losses:
            if abs(loss - curve[epoch]) > SAME * abs(curve[epoch]):
                return f"epoch {epoch}: loss {loss}, undisturbed {curve[epoch]}"
    if run.exit_code == 0 and len(run.seen.loss_by_epoch) < case.epochs:
        return f"{len(run.seen.loss_by_epoch)} of {case.epochs} epochs were told"
    if run.exit_code == 0 and not (run.folder / "model.keras").exists():
        return "no model was kept"
    return ""

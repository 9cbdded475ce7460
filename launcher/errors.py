"""Every error the launcher raises on purpose.

LauncherError                exit code
├── UsageError               2   the request itself is wrong
│   ├── ScriptError          2   the script cannot be trained as it is
│   └── RecordError          2   a run record is missing or damaged
│       └── TakenOverError   2   another launcher drives the run now
├── ScriptFailedError        1   the user's script raised; carries its traceback
├── TrainingFailedError      1   training could not go on (workers died, stuck)
│   └── PeerLostError        1   another worker died, froze or was cut off
├── BudgetTooSmallError      3   no plan fits the budget or the deadline
└── ClusterError             4   the cluster is unreachable or not fit
    ├── StorageError         4   storage cannot be written or read
    └── DataError            4   data cannot be brought to the nodes
"""


class LauncherError(Exception):
    """Base: what happened, with the values, then what to do."""

    exit_code = 1


class UsageError(LauncherError):
    """The request cannot be carried out as it was made."""

    exit_code = 2


class ScriptError(UsageError):
    """The script cannot be trained as it is; raised before money is spent."""


class RecordError(UsageError):
    """A run record is missing, damaged, or belongs to someone else."""


class TakenOverError(RecordError):
    """Another launcher has taken a run over, so this one must not write to it any more.

    Args:
        run: the run's name.
        owner: who drives it now.
    """

    def __init__(self, run: str, owner: str) -> None:
        super().__init__(run, owner)
        self.run, self.owner = run, owner

    def __str__(self) -> str:
        return (
            f"{self.run} has been taken over by {self.owner} while this launcher was silent. It "
            f"ends here and writes nothing more. Follow the run: launch attach {self.run}"
        )


class ScriptFailedError(LauncherError):
    """The user's script raised an exception, on a given rank.

    Args:
        rank: the worker on which it happened.
        traceback: the text to show, with the user's frames only.
    """

    exit_code = 1

    def __init__(self, rank: int, traceback: str) -> None:
        super().__init__(rank, traceback)
        self.rank, self.traceback = rank, traceback

    def __str__(self) -> str:
        return self.traceback


class TrainingFailedError(LauncherError):
    """Training could not go on: workers died, or no step was made for too long."""

    exit_code = 1


class PeerLostError(TrainingFailedError):
    """Another worker died, froze or was cut off.

    Args:
        rank: of the worker that is lost.
        address: where it was, "ip:port".
        reason: what was noticed, as a clause.
    """

    def __init__(self, rank: int, address: str, reason: str) -> None:
        super().__init__(rank, address, reason)
        self.rank, self.address, self.reason = rank, address, reason

    def __str__(self) -> str:
        return f"Lost the worker of rank {self.rank} at {self.address}: {self.reason}."


class BudgetTooSmallError(LauncherError):
    """No plan fits the budget or the deadline."""

    exit_code = 3


class ClusterError(LauncherError):
    """The cluster cannot be reached, or is not fit to train."""

    exit_code = 4


class StorageError(ClusterError):
    """Storage cannot be written or read."""


class DataError(ClusterError):
    """The data of a run cannot be brought to its nodes."""

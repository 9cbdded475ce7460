"""Makes sure that all ranks train with the same data, or says why that cannot be told."""

from typing import Any

from launcher.errors import ScriptError
from launcher.worker.channel import Channel

DRAWS = (
    "The workers draw random numbers in a parallel Dataset.map, each in an order of its own, so "
    "they train with other draws than one worker would, and whether they saw the same rows cannot "
    "be told ({where}). Leave num_parallel_calls out there, draw with tf.random.stateless_…, or "
    "augment in layers of the model."
)


class DataCheck:
    """Compares what the ranks have trained with.

    Args:
        parallel: the engine, which compares.
        channel: takes the warning.
        hints: likely causes of other data, found in the script.
        parallel_draws: the only cause that was found, if that is draws whose order is a matter
            of time: rows are then the same, and what is made of them is not.
    """

    def __init__(
        self,
        parallel: Any,
        channel: Channel,
        hints: tuple[str, ...] = (),
        parallel_draws: tuple[str, ...] = (),
    ) -> None:
        self._parallel, self._channel = parallel, channel
        self._hints, self._parallel_draws = hints, parallel_draws
        self._has_warned = False

    def check(self) -> None:
        """Collective.

        Raises:
            ScriptError: the ranks saw other data than each other.
        """
        try:
            self._parallel.check_data()
        except ScriptError as error:
            if self._parallel_draws:
                self._warn()
                return
            found = f" Found in the script: {'; '.join(self._hints)}." if self._hints else ""
            raise ScriptError(f"{error}{found}") from None

    def _warn(self) -> None:
        if not self._has_warned:
            where = "; ".join(self._parallel_draws)
            self._channel.emit("warning", text=DRAWS.format(where=where))
        self._has_warned = True

"""Do several things at the same time, and let go of them at once on an error or Ctrl-C."""

import queue
import threading
from collections.abc import Callable, Sequence
from typing import Any

CHECK_S = 0.2  # how long a signal may wait to be handled


def side_by_side(tasks: Sequence[Callable[[], Any]]) -> list[Any]:
    """Call all tasks, each on a thread of its own; their results in order.

    The first error is raised as soon as it happens. Tasks that are still running then go on
    unheard, and end with the process at the latest.
    """
    answers: queue.SimpleQueue[tuple[int, Any, BaseException | None]] = queue.SimpleQueue()

    def work(index: int, task: Callable[[], Any]) -> None:
        try:
            answers.put((index, task(), None))
        except BaseException as error:  # noqa: BLE001 - raised again in the caller's thread
            answers.put((index, None, error))

    for index, task in enumerate(tasks):
        threading.Thread(target=work, args=(index, task), daemon=True).start()
    results: list[Any] = [None] * len(tasks)
    for _ in tasks:
        index, result, error = _next(answers)
        if error is not None:
            raise error
        results[index] = result
    return results


def _next(answers: "queue.SimpleQueue[Any]") -> Any:
    while True:
        try:
            return answers.get(timeout=CHECK_S)
        except queue.Empty:
            continue

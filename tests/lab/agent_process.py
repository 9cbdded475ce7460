"""A probe agent in a process of its own: reads calls on stdin, writes answers to stdout.

Started in a lab host as `python -m tests.lab.agent_process IP TOKEN`, from the checkout.
"""

import pickle
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from launcher.worker.agent import ProbeAgent


def main() -> None:
    ip, token = sys.argv[1], bytes.fromhex(sys.argv[2])
    agent = ProbeAgent(ip, token, everywhere=True)
    lock = threading.Lock()

    def serve(number: int, method: str, args: tuple[Any, ...]) -> None:
        try:
            answer = getattr(agent, method)(*args)
        except Exception as error:  # noqa: BLE001 - the caller's to judge
            answer = error
        with lock:
            pickle.dump((number, answer), sys.stdout.buffer)
            sys.stdout.buffer.flush()

    with ThreadPoolExecutor(2) as pool:
        while True:
            try:
                pool.submit(serve, *pickle.load(sys.stdin.buffer))
            except EOFError:
                return


if __name__ == "__main__":
    main()

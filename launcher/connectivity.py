"""Who meets whom to find blocked ports, and which node is to blame for what was blocked."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from launcher.problem import Problem
from launcher.worker.checkup import Contact

Pair = frozenset[str]

MEET_ALL = 16  # up to so many nodes, each meets every other one
TOO_MANY = 0.5  # a node that is cut off from more than this share of its peers is unfit
OPEN_PORTS = "open all TCP ports between the nodes (training uses ports that the system chooses)"


def peers(index: int, n_nodes: int) -> tuple[int, ...]:
    """The nodes that a node connects to: all, or those 1, 2, 4, 8, … places further on.

    So n nodes make n log₂ n connections, and each is met by as many as it meets.
    """
    if n_nodes <= MEET_ALL:
        return tuple(i for i in range(n_nodes) if i != index)
    steps = (1 << k for k in range(n_nodes.bit_length()))
    return tuple((index + step) % n_nodes for step in steps if step < n_nodes)


def port_problems(
    contacts_by_node: Mapping[str, Sequence[Contact]], ip_by_node: Mapping[str, str], driver: str
) -> Iterator[Problem]:
    """The nodes that are cut off, worst first, until those that are left reach each other.

    A single blocked pair is a warning: the probe finds that link unknown, and plans avoid it.
    """
    error_by_pair: dict[Pair, str] = {}
    tried: set[Pair] = set()
    for node, contacts in contacts_by_node.items():
        for contact in contacts:
            if contact.node == node:
                continue
            pair = frozenset((node, contact.node))
            tried.add(pair)
            if contact.error is not None:
                path = f"from {ip_by_node[node]} to {ip_by_node[contact.node]}"
                error_by_pair[pair] = f"{contact.error} {path}"
    while error_by_pair:
        node, n_blocked, n_tried = _worst(error_by_pair, tried, driver)
        if n_blocked <= TOO_MANY * n_tried:
            break
        error = next(text for pair, text in error_by_pair.items() if node in pair)
        others = f"{n_blocked} of {n_tried} nodes" if n_tried > 1 else "the other node"
        yield Problem(node, "ports", "fail", f"is cut off from {others} ({error}): {OPEN_PORTS}")
        error_by_pair = {p: text for p, text in error_by_pair.items() if node not in p}
        tried = {pair for pair in tried if node not in pair}
    for pair, error in error_by_pair.items():
        node = next(each for each in sorted(pair) if each != driver)
        yield Problem(node, "ports", "warn", f"has a blocked path ({error}): {OPEN_PORTS}")


def _worst(blocked: Mapping[Pair, str], tried: set[Pair], driver: str) -> tuple[str, int, int]:
    """The node with most of its pairs blocked, how many those are, and of how many.

    Among equals it is one that the driver cannot reach.
    """
    n_blocked = Counter(node for pair in blocked for node in pair)
    n_tried = Counter(node for pair in tried for node in pair)
    worst = max(
        sorted(n_blocked),
        key=lambda node: (
            n_blocked[node] / n_tried[node],
            node != driver and frozenset((node, driver)) in blocked,
            node != driver,
        ),
    )
    return worst, n_blocked[worst], n_tried[worst]

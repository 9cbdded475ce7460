"""Judges what a checkup found: which nodes are fit to train, and what to do about the others."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from launcher.connectivity import port_problems
from launcher.problem import CHECKS, Check, Level, Problem, worst
from launcher.script_needs import PathNeed, ScriptNeeds
from launcher.worker.checkup import Contact, NodeFacts
from policies.schema import Node
from policies.wording import size

MAX_CLOCK_OFFSET_S = 1.0
LOW_DISK_BYTES = 1e9
NO_DISK_BYTES = 64e6
LOW_MEMORY_BYTES = 1e9  # TensorFlow with a small model takes 0.6 GB
LOW_SHM_BYTES = 128e6
_PIP_BY_MODULE = {
    "PIL": "pillow",
    "cv2": "opencv-python-headless",
    "sklearn": "scikit-learn",
    "yaml": "pyyaml",
    "skimage": "scikit-image",
}
# The workers run these, so they must be the same to the last digit; others may differ.
_SAME = ("python", "launch", "ray", "tensorflow", "keras")
_BETTER_SAME = ("tf_keras", "numpy")
_TITLE_BY_NAME = {
    "python": "Python",
    "launch": "launcher",
    "ray": "Ray",
    "tensorflow": "TensorFlow",
    "keras": "Keras",
    "numpy": "NumPy",
}


@dataclass(frozen=True, slots=True)
class Findings:
    """What a checkup found.

    Attributes:
        nodes: that were asked.
        driver: id of the driver's node.
        mine: what is there in the driver's own process.
        facts_by_node: of the nodes that answered.
        silence_by_node: of the others, why there is no answer.
        contacts_by_node: whom each node met.
        from_driver: whom the driver met.
    """

    nodes: tuple[Node, ...]
    driver: str
    mine: NodeFacts
    facts_by_node: Mapping[str, NodeFacts]
    silence_by_node: Mapping[str, str] = field(default_factory=dict)
    contacts_by_node: Mapping[str, tuple[Contact, ...]] = field(default_factory=dict)
    from_driver: tuple[Contact, ...] = ()


def diagnose(found: Findings, needs: ScriptNeeds) -> tuple[Problem, ...]:
    """Everything that is not as it should be, by node and check."""
    problems = [
        Problem(node, "answers", "fail", f"does not answer: {why}")
        for node, why in found.silence_by_node.items()
    ]
    cpus_by_node = {node.id: node.cpus for node in found.nodes}
    ip_by_node = {node.id: node.ip for node in found.nodes}
    for node, facts in found.facts_by_node.items():
        problems += _versions(node, facts, found.mine)
        problems += _room(node, facts)
        problems += _quota(node, facts, cpus_by_node[node])
        problems += _modules(node, facts, found)
        problems += _paths(node, facts, found, needs)
    contacts_by_node = {found.driver: found.from_driver, **found.contacts_by_node}
    ip_by_node.setdefault(found.driver, "the driver's machine")
    problems += port_problems(contacts_by_node, ip_by_node, found.driver)
    problems += _clocks(found.from_driver)
    order = {node.id: i for i, node in enumerate(found.nodes)}
    return tuple(sorted(problems, key=lambda p: (order.get(p.node, -1), CHECKS.index(p.check))))


def levels(found: Findings, problems: Sequence[Problem]) -> dict[str, dict[Check, Level | None]]:
    """The worst of each check on each node; None where a silent node could not be asked."""
    table: dict[str, dict[Check, Level | None]] = {}
    for node in found.nodes:
        mine = [problem for problem in problems if problem.node == node.id]
        silent = node.id in found.silence_by_node
        table[node.id] = {
            check: None
            if silent and check != "answers"
            else worst(problem.level for problem in mine if problem.check == check)
            for check in CHECKS
        }
    return table


def _versions(node: str, facts: NodeFacts, mine: NodeFacts) -> Iterator[Problem]:
    for name in (*_SAME, *_BETTER_SAME):
        here, there = mine.version_by_name.get(name), facts.version_by_name.get(name)
        if here == there or here is None:
            continue
        title, package = _TITLE_BY_NAME.get(name, name), f"{name}=={here}"
        remedy = f"pip install {package} there"
        if name == "python":
            remedy = f"install Python {here} there and start Ray with it"
        elif name == "launch":
            remedy = "Ray did not ship the driver's: is its runtime_env agent running there?"
        state = f"has {title} {there}" if there else f"has no {title}"
        level: Level = "fail" if name in _SAME else "warn"
        yield Problem(node, "versions", level, f"{state}, the driver {here}: {remedy}")


def _room(node: str, facts: NodeFacts) -> Iterator[Problem]:
    """Disk and memory."""
    for folder, free in facts.disk_free_bytes_by_folder.items():
        if free < LOW_DISK_BYTES:
            level: Level = "fail" if free < NO_DISK_BYTES else "warn"
            text = f"has only {size(free)} free in {folder}: free at least 1 GB there"
            yield Problem(node, "disk", level, text)
    free_bytes = facts.memory_free_bytes
    if free_bytes is not None and free_bytes < LOW_MEMORY_BYTES:
        text = (
            f"has only {size(free_bytes)} of memory free: TensorFlow alone takes 0.6 GB; "
            "end other programs there"
        )
        yield Problem(node, "memory", "warn", text)
    if facts.shm_bytes is not None and facts.shm_bytes < LOW_SHM_BYTES:
        text = (
            f"has only {size(facts.shm_bytes)} of shared memory, so Ray falls back to the disk: "
            "enlarge /dev/shm (docker run --shm-size=1g)"
        )
        yield Problem(node, "memory", "warn", text)


def allowed_cpus(found: Findings) -> dict[str, float]:
    """What the operating system allows on nodes where that is less than Ray counts."""
    allowed_by_node = {
        node.id: found.facts_by_node[node.id].allowed_cpus
        for node in found.nodes
        if node.id in found.facts_by_node
    }
    return {
        node.id: allowed
        for node in found.nodes
        if (allowed := allowed_by_node.get(node.id)) is not None and is_less(allowed, node.cpus)
    }


def is_less(allowed: float, cpus: float) -> bool:
    """Whether a limit of CPUs is worth telling from what Ray counts."""
    return allowed < 0.95 * cpus


def _quota(node: str, facts: NodeFacts, cpus: float) -> Iterator[Problem]:
    allowed = facts.allowed_cpus
    if allowed is not None and is_less(allowed, cpus):
        text = (
            f"may use {allowed:.3g} CPUs, and Ray counts {cpus:g}: plans go by the speed that is "
            "measured; for Ray's books, start it with --num-cpus"
        )
        yield Problem(node, "cpus", "note", text)


def _clocks(contacts: Sequence[Contact]) -> Iterator[Problem]:
    for contact in contacts:
        if contact.offset_s is None or contact.rtt_s is None:
            continue
        if abs(contact.offset_s) - contact.rtt_s / 2 > MAX_CLOCK_OFFSET_S:
            way = "ahead of" if contact.offset_s > 0 else "behind"
            text = (
                f"has a clock {abs(contact.offset_s):.1f} s {way} the driver's: "
                "synchronise it (chrony or another NTP client)"
            )
            yield Problem(contact.node, "clock", "warn", text)


def _modules(node: str, facts: NodeFacts, found: Findings) -> Iterator[Problem]:
    for name in facts.missing_modules:
        somewhere = name not in found.mine.missing_modules or any(
            name not in each.missing_modules for each in found.facts_by_node.values()
        )
        install = f"pip install {_PIP_BY_MODULE.get(name, name)}"
        if somewhere:
            text = f"lacks the module {name}, which the script imports: {install} there"
        else:
            text = f"lacks the module {name}, as does every node and the driver: {install}"
        yield Problem(node, "modules", "fail", text, everywhere=not somewhere)


def _paths(node: str, facts: NodeFacts, found: Findings, needs: ScriptNeeds) -> Iterator[Problem]:
    for need in needs.paths:
        if need.path in facts.found_paths or need.role == "output":
            continue
        on_driver = need.path in found.mine.found_paths
        others = [
            each.ip
            for each in found.nodes
            if need.path in getattr(found.facts_by_node.get(each.id), "found_paths", ())
        ]
        if not on_driver and not others:
            continue  # it is yet to be made, or the script will say itself that it is not there
        owner = "the driver's machine" if on_driver else others[0]
        text = f"lacks {need.path} ({need.where}), which {owner} has: {_remedy(need, needs)}"
        is_sure = need.is_argument and (on_driver or need.role == "input")
        yield Problem(node, "paths", "fail" if is_sure else "warn", text)


def _remedy(need: PathNeed, needs: ScriptNeeds) -> str:
    root = needs.root
    if root is not None and need.path.startswith(f"{root}/"):
        inside = need.path[len(str(root)) + 1 :]
        return f"the folder is shipped, so name it as {inside}"
    return "mount or copy it to every node (or make it there, if it is for output)"

"""How a batch is shared out when training starts: by the speeds that were profiled."""

from collections import Counter
from collections.abc import Sequence

from policies.cost_model import held_cpus, line_of, speed_of
from policies.schema import Node, Plan, Workload
from policies.slices import even_slices


def first_slices(
    plan: Plan, nodes: Sequence[Node], workload: Workload, global_batch: int
) -> tuple[float, ...]:
    """Each rank's slice of the batch, in rows, such that all end a step at the same time.

    Empty where all are alike: then slices are equal.
    """
    n_by_node, cpus_by_node = Counter(plan.nodes), held_cpus(plan, nodes)
    held = [node for node in nodes if node.id in n_by_node]
    gpus = plan.options.gpus_per_worker
    lines = [
        line_of(speed_of(node, workload)[0], cpus_by_node[node.id], gpus, n_by_node[node.id])
        for node in held
    ]
    slices = dict(zip((node.id for node in held), even_slices(lines, global_batch), strict=True))
    if max(slices.values()) <= min(slices.values()) * (1.0 + 1e-9):
        return ()
    return tuple(slices[node] for node in plan.nodes)

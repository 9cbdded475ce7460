"""In which order TensorFlow's collectives connect their tasks."""


def task_by_rank(world_size: int) -> tuple[int, ...]:
    """TensorFlow's task index of each rank, such that the ring runs in order of rank.

    TensorFlow sorts the tasks of a collective by name, as text: `task:10` comes before `task:2`.
    So from eleven workers on, rank 2 of the plan must be called task 10.
    """
    return tuple(sorted(range(world_size), key=str))

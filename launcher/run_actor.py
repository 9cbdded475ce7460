"""The name of a run's keeper in its cluster: no two drivers there have one of the same run."""

from launcher.errors import TakenOverError
from launcher.record import RunRecord

NAMESPACE = "launch"


def keeper_name(record: RunRecord) -> str:
    """What the keeper of a run's driver is called in the cluster."""
    return f"{_birth(record)}#{record.term}"


def end_earlier_keepers(record: RunRecord) -> None:
    """End what earlier drivers of a run have left running in this cluster.

    One that was frozen when the run was taken over still holds its nodes; without its keeper
    its training ends.

    Raises:
        TakenOverError: a driver of a later term trains the run here.
    """
    import ray
    from ray.util import list_named_actors

    prefix = f"{_birth(record)}#"
    for actor in list_named_actors(all_namespaces=True):
        if actor["namespace"] != NAMESPACE or not actor["name"].startswith(prefix):
            continue
        if int(actor["name"].removeprefix(prefix)) >= record.term:
            raise TakenOverError(record.run, "another launcher of this cluster")
        try:
            ray.kill(ray.get_actor(actor["name"], NAMESPACE))
        except ValueError:
            continue  # it has just ended by itself


def _birth(record: RunRecord) -> str:
    """Tells runs of one name apart, in storages that know nothing of each other."""
    return f"keeper-{record.run}-{record.created}"

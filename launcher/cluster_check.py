"""Asks a Ray cluster who it is, in a process of its own: Ray's client may block or abort there.

Run as `python -P -m launcher.cluster_check HOST:PORT`; prints a line on stdout when Ray is imported
and it begins to ask, then one JSON object.
"""

import json
import sys
from typing import Any


def answer(address: str) -> dict[str, Any]:
    """What the cluster at `host:port` says of itself; blocks on the network.

    Returns:
        `ray` and `python` (its versions), `here` (one of its nodes is this machine) and
        `token` (it wanted this user's token); or `error` with one line.
    """
    from ray import exceptions
    from ray._private import services
    from ray._private.authentication import authentication_token_setup as authentication

    # Ray asks at this machine's own address in place of 127.0.0.1; where nothing listens there,
    # `ray.init` would wait for ever.
    address = services.canonicalize_bootstrap_address(address) or address
    local_ids = services.find_node_ids()
    token = False
    try:
        try:
            facts = _ask(address)
        except exceptions.AuthenticationError:
            # A token is only ever sent from a machine that is a Ray node itself.
            token = bool(local_ids) and authentication.maybe_enable_token_auth_if_token_available()
            if not token:
                raise
            facts = _ask(address)
    except exceptions.AuthenticationError:
        return {"error": "it wants a token that this user lacks (~/.ray/auth_token)"}
    except (exceptions.RpcError, RuntimeError, ValueError, AttributeError) as error:
        return {"error": " ".join(str(error).split())}
    ids = facts.pop("ids")
    return {**facts, "here": bool(ids & local_ids), "token": token}


def _ask(address: str) -> dict[str, Any]:
    from ray._common.usage.usage_lib import get_cluster_metadata
    from ray._private.services import GcsClient

    client = GcsClient(address=address)
    metadata = get_cluster_metadata(client)
    ids = {node_id.hex() for node_id in client.get_all_node_info(timeout=5)}
    return {"ray": metadata["ray_version"], "python": metadata["python_version"], "ids": ids}


def main() -> None:
    """Answer for the address on the command line."""
    import ray.exceptions  # noqa: F401 - what takes time before anything is asked

    print("asking", flush=True)
    print(json.dumps(answer(sys.argv[1])), flush=True)


if __name__ == "__main__":
    main()

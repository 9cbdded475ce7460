"""Remembers a network map for a while, per set of nodes."""

import json
import logging
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from launcher.small_file import read_object, replace_file
from policies.schema import Interface, Link, Network, Node

log = logging.getLogger(__name__)

MAX_AGE = timedelta(minutes=10)
_VERSION = 2


def load(path: Path, nodes: Sequence[Node], now: datetime) -> Network | None:
    """The map of exactly these machines, if the file holds one younger than `MAX_AGE`.

    Machines are known by their address and kind, because a restarted Ray gives them new ids.
    """
    try:
        network = _network(json.loads(path.read_text(encoding="utf-8"))[_key(nodes)])
        age = now - datetime.fromisoformat(network.probed_at)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        log.debug("no remembered network in %s: %r", path, error)
        return None
    if not timedelta(0) <= age <= MAX_AGE:
        return None
    return _renamed(network, {name: node.id for node, name in _names(nodes).items()})


def save(path: Path, nodes: Sequence[Node], network: Network) -> None:
    """Remember a map; one with silent nodes is not worth it. Replaces the file at once."""
    if network.silent:
        return
    named = _renamed(network, {node.id: name for node, name in _names(nodes).items()})
    known = {**_read(path), _key(nodes): {"version": _VERSION, **asdict(named)}}
    newest = sorted(known.items(), key=lambda item: str(item[1].get("probed_at")))[-20:]
    try:
        replace_file(path, json.dumps(dict(newest)))
    except OSError as error:
        log.warning("the network map could not be remembered: %s", error)


def _read(path: Path) -> dict[str, dict[str, Any]]:
    return {key: value for key, value in read_object(path).items() if isinstance(value, dict)}


def _names(nodes: Sequence[Node]) -> dict[Node, str]:
    """A name for each node that outlives a restart of Ray, if its address is its alone."""
    n_by_ip = Counter(node.ip for node in nodes)
    return {node: node.ip if n_by_ip[node.ip] == 1 else node.id for node in nodes}


def _key(nodes: Sequence[Node]) -> str:
    return " ".join(sorted(f"{name}={node.kind}" for node, name in _names(nodes).items()))


def _network(stored: dict[str, Any]) -> Network:
    if stored.pop("version") != _VERSION:
        raise ValueError("written by another version")
    links = tuple(Link(**link) for link in stored.pop("links"))
    found = tuple(Interface(**interface) for interface in stored.pop("interfaces"))
    return Network(links=links, interfaces=found, **{**stored, "silent": ()})


def _renamed(network: Network, name_by_old: dict[str, str]) -> Network:
    links = tuple(
        replace(link, src=name_by_old[link.src], dst=name_by_old[link.dst])
        for link in network.links
    )
    found = tuple(replace(each, node=name_by_old[each.node]) for each in network.interfaces)
    return replace(network, links=links, interfaces=found)

"""Reads on a cluster's head what its autoscaler was told; nothing else of that file leaves it."""

import logging
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

log = logging.getLogger(__name__)

# `ray up` leaves the file here, for whoever cannot see the autoscaler's command line.
BOOTSTRAP = Path("~/ray_bootstrap_config.yaml")
_MONITORS = ("autoscaler/v2/monitor.py", "autoscaler/_private/monitor.py")
_TYPE_KEYS = ("resources", "labels", "min_workers", "max_workers")
_INSTANCE_KEYS = ("InstanceType", "machineType", "azure_arm_parameters")
_KEYS = ("max_workers", "head_node_type", "idle_timeout_minutes")


def autoscaling_words(gcs_address: str, proc: Path = Path("/proc")) -> dict[str, Any] | None:
    """The parts of the running autoscaler's configuration that say which nodes it may start.

    Args:
        gcs_address: `host:port` of the cluster, whose autoscaler is meant.
        proc: where the system shows its processes.

    Returns:
        Keys and values as in a Ray cluster file, without anything secret in them; None where
        no autoscaler with a configuration runs here.
    """
    monitors = list(_monitors(gcs_address, proc))
    path = monitors[0] if monitors else BOOTSTRAP.expanduser()
    if path is None:
        return None
    try:
        words = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        if monitors:
            log.warning("the autoscaler's configuration %s cannot be read: %s", path, error)
        return None
    return shareable(words) if isinstance(words, dict) else None


def shareable(words: Mapping[str, Any]) -> dict[str, Any]:
    """Of a Ray cluster file only what describes the nodes to start."""
    types = words.get("available_node_types")
    found = {
        name: {
            **{key: each[key] for key in _TYPE_KEYS if key in each},
            "node_config": _instance(each.get("node_config")),
        }
        for name, each in (types if isinstance(types, dict) else {}).items()
        if isinstance(each, dict)
    }
    kept = {key: words[key] for key in _KEYS if key in words}
    return {**kept, "available_node_types": found}


def _instance(node_config: object) -> dict[str, Any]:
    if not isinstance(node_config, dict):
        return {}
    found = {key: node_config[key] for key in _INSTANCE_KEYS if key in node_config}
    azure = found.pop("azure_arm_parameters", None)
    if isinstance(azure, dict) and "vmSize" in azure:
        found["azure_arm_parameters"] = {"vmSize": azure["vmSize"]}
    return found


def _monitors(gcs_address: str, proc: Path) -> Iterator[Path | None]:
    """The configuration files of the cluster's autoscaler processes; None: it has none."""
    port = gcs_address.rsplit(":", 1)[-1]
    for command_line in proc.glob("[0-9]*/cmdline"):
        try:
            words = command_line.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue  # it has ended, or is someone else's
        if not any(word.endswith(_MONITORS) for word in words):
            continue
        options = dict(word.split("=", 1) for word in words if "=" in word)
        if options.get("--gcs-address", "").rsplit(":", 1)[-1] != port:
            continue
        file = options.get("--autoscaling-config")
        # Ray itself, and no shell, puts the home folder in for `~`, as in its own default commands.
        yield None if file is None else command_line.parent / "cwd" / Path(file).expanduser()

"""What the lab needs of a machine."""

import os
import shutil
import sys
from pathlib import Path

COMMANDS = ("ip", "unshare")


def missing() -> str | None:
    """Why the lab cannot run here, or None where it can."""
    if sys.platform != "linux":
        return f"the lab needs Linux (network namespaces), and this is {sys.platform}"
    if os.geteuid() != 0:
        return "the lab needs root (it makes network namespaces): use sudo"
    if not Path("/dev/net/tun").exists():
        return "the lab needs /dev/net/tun: load the kernel's tun module (modprobe tun)"
    lacking = [name for name in COMMANDS if shutil.which(name) is None]
    if lacking:
        return f"the lab needs the commands {' and '.join(lacking)}: install iproute2, util-linux"
    return None

"""The launcher's agent on a node: one process that answers both the check and the probe."""

from collections.abc import Sequence

from launcher.worker.agent import ProbeAgent
from launcher.worker.checkup import CheckupAgent, Contact, Needs, NodeFacts, Peer


class NodeAgent(ProbeAgent):
    """A probe's agent that can say what is there on its node, and meet others.

    Args:
        ip: the node's address in the cluster.
        token: random bytes that all agents of a cluster share.
        everywhere: whether to answer at the node's addresses on other networks, too.
    """

    def __init__(self, ip: str, token: bytes, *, everywhere: bool = False) -> None:
        super().__init__(ip, token, everywhere=everywhere)
        self._checkup = CheckupAgent(ip, token)

    def facts(self, needs: Needs) -> NodeFacts:
        """What is there on this node."""
        return self._checkup.facts(needs)

    def meet(self, peers: Sequence[Peer], timeout_s: float) -> tuple[Contact, ...]:
        """Connect to other agents; see `checkup.meet`."""
        return self._checkup.meet(peers, timeout_s)

    def close(self) -> None:
        """Stop answering."""
        super().close()
        self._checkup.close()

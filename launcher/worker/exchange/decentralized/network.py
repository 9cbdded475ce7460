"""What training without a master asks of the links to its peers."""

from collections.abc import Callable
from typing import Protocol

from launcher.worker.exchange.decentralized.link import Hearer
from launcher.worker.exchange.decentralized.message import Message, Outgoing


class Network(Protocol):
    """Links to peers; `links.Links` is one."""

    def send(self, outgoing: Outgoing) -> None:
        """Sends a message; returns at once."""
        ...

    def send_to_all(self, message: Message) -> None:
        """Sends a message to all that are there."""
        ...

    def capacity_bytes(self, step_s: float | None) -> dict[int, int]:
        """What the link to each peer carries until the next step."""
        ...

    def sent_bytes(self) -> dict[int, int]:
        """What was sent to each peer."""
        ...

    def up(self) -> set[int]:
        """The peers that are there."""
        ...

    def close(self) -> None:
        """Ends all connections."""
        ...


OpenNetwork = Callable[[int, Hearer, int], Network]
"""Opens the links for a model's vector of so many entries, and of this generation."""

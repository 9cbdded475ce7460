"""Messages between ranks, as the algorithms see them."""

from typing import Any, Protocol


class Pending(Protocol):
    """A message on its way."""

    def wait(self) -> None:
        """Block until it has left or come."""
        ...


class Mailbox(Protocol):
    """Sends to and receives from any other rank; `transport.mesh.Mesh` is one."""

    rank: int
    world_size: int

    def send(self, to: int, tag: int, data: Any) -> Pending:
        """Send; the data must not change before `wait` of the result returns."""
        ...

    def receive(self, source: int, tag: int, into: Any) -> Pending:
        """Receive what `source` sends with this tag; it is there when `wait` returns."""
        ...

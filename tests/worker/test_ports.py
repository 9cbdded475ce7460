import socket

import pytest

from launcher.worker import ports
from launcher.worker.exchange.transport.address import listen, parse_address
from tests.ports import free_ports


@pytest.fixture(autouse=True)
def _own(monkeypatch: pytest.MonkeyPatch):
    held: dict = {}
    monkeypatch.setattr(ports, "_HELD", held)
    yield
    for one in held.values():
        one.close()


@pytest.mark.parametrize("ip", ["127.0.0.1", "::1"])
def test_a_held_port_can_be_listened_at_again_and_again(ip: str) -> None:
    address = parse_address(ports.hold_port(ip))
    for _ in range(3):
        listener = listen(address)
        with socket.create_connection((ip, address.port)) as client:
            listener.accept()[0].close()
            client.close()
        listener.close()


def test_a_held_port_is_given_to_nobody_else() -> None:
    address = parse_address(ports.hold_port("127.0.0.1"))
    for stranger_ip in ("127.0.0.1", "0.0.0.0"):
        with socket.socket() as stranger, pytest.raises(OSError, match="in use"):
            stranger.bind((stranger_ip, address.port))
    with socket.socket() as dialing:
        dialing.bind(("127.0.0.1", 0))
        assert dialing.getsockname()[1] != address.port


def test_a_process_in_anothers_place_holds_its_port_if_it_can() -> None:
    (port,) = free_ports(1)
    text = f"127.0.0.1:{port}"
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        ports.hold_again(text)  # it is taken
        assert not ports._HELD
    ports.hold_again(text)
    ports.hold_again(text)
    ports.hold_again("")
    assert [str(address) for address in ports._HELD] == [text]

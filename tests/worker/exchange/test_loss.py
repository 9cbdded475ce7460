from launcher.errors import PeerLostError, TrainingFailedError
from launcher.worker.exchange.loss import lost_peer


class Exchange:
    def __init__(self, world_size: int, lost: PeerLostError | None = None) -> None:
        self.world_size, self.lost = world_size, lost


class UnavailableError(Exception):
    """Named like TensorFlow's."""


GONE = UnavailableError(
    "Collective ops is aborted by: Connection reset by peer\nAdditional GRPC error information "
    "from remote target /job:worker/replica:0/task:1"
)


def test_a_loss_that_the_exchange_noticed_is_the_cause_whatever_was_raised() -> None:
    lost = PeerLostError(2, "10.0.0.6:7001", "its process has ended")
    assert lost_peer(Exchange(3, lost), RuntimeError("UnknownError: …")) is lost


def test_an_exchange_to_which_keras_is_alone_tells_why_it_failed() -> None:
    failed = TrainingFailedError("This worker cannot listen at 10.0.0.6:7001")

    class Part:
        world_size, lost = 1, failed

    assert lost_peer(Part(), RuntimeError("UnknownError: …")) is failed


def test_what_tensorflows_runtime_raises_when_a_worker_is_gone_is_a_loss() -> None:
    found = lost_peer(Exchange(2), GONE)
    assert found is not None
    assert "Connection reset by peer" in str(found)


def test_other_errors_are_the_scripts_own() -> None:
    assert lost_peer(Exchange(2), UnavailableError("the file server is down")) is None
    assert lost_peer(Exchange(2), ValueError("Collective")) is None
    assert lost_peer(Exchange(1), GONE) is None
    assert lost_peer(Exchange(2), None) is None
    assert lost_peer(None, GONE) is None

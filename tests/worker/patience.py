"""What processes of tests wait for each other, where others may need the processors more."""

PATIENCE_S = 900.0


def be_patient() -> None:
    """A peer that gets no processor is not lost, nor is a checkpoint that takes its time."""
    from launcher.worker import checkpoints
    from launcher.worker.exchange.transport import pulse

    pulse.PEER_SILENCE_S = pulse.PATH_SILENCE_S = PATIENCE_S
    checkpoints.LAST_S = PATIENCE_S

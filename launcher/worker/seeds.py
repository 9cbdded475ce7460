"""Folds a rank into a random seed."""


def folded_seed(seed: int, rank: int) -> int:
    """A seed below 2^31 − 2 that differs between ranks; rank 0 keeps its own.

    Keras reduces seeds modulo 2^31 − 2, so different results stay different there.
    """
    if rank == 0:
        return seed
    modulus = 2**31 - 2
    return (seed + rank * 0x9E3779B1) % modulus

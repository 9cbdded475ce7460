"""What a file system raises, as one line that says what to do."""

import errno
import re
from collections.abc import Iterator
from contextlib import contextmanager

from launcher.errors import StorageError

REMEDIES = {
    errno.ENOSPC: "Make some room there.",
    errno.EDQUOT: "Make some room there.",
    errno.EROFS: "Mount it for writing.",
    errno.ECONNREFUSED: "Start the server, or correct the address.",
}


@contextmanager
def storage_errors(what: str) -> Iterator[None]:
    """Turn what a filesystem raises into one line."""
    try:
        yield
    except (OSError, ValueError) as error:  # pyarrow's errors are children of these two
        reason = _reason(error)
        raise StorageError(f"{what}: {reason}. {_remedy(error, reason)}") from error


def _remedy(error: Exception, reason: str) -> str:
    if isinstance(error, OSError) and error.errno in REMEDIES:
        return REMEDIES[error.errno]
    if "ACCESS_DENIED" in reason or "No credentials" in reason:
        return "Check the credentials, such as AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY."
    if "NETWORK_CONNECTION" in reason:
        return "Is the server up, and the network?"
    return "Check the path and your rights to it."


def _reason(error: Exception) -> str:
    text = (error.strerror if isinstance(error, OSError) else None) or str(error)
    line = " ".join(text.split())
    line = public_uri(line)
    return (line if len(line) <= 300 else f"{line[:299]}…").rstrip(". ")


def public_uri(uri: str) -> str:
    """A URI without the user name and password that it may carry."""
    return re.sub(r"(?<=://)[^/@\s]*@", "", uri)

"""The words of `--data`: a path or URI for all nodes, or `SITE=URI` for those of one site."""

import contextlib
import re
import shlex
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import unquote, urlsplit

from launcher import quantities as q
from launcher.errors import UsageError
from launcher.worker.staging.uris import SCHEMES, public_uri, scheme_of

# What a label of Ray's may hold, and no path or URI begins with.
_SITE: Final = re.compile(r"([A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?)=(.*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class SiteUri:
    """The data of one site: a URI, or a path of the site's own nodes."""

    site: str
    uri: str = field(repr=False)

    @property
    def public(self) -> str:
        """As records and messages may show it."""
        return f"{self.site}={public_uri(self.uri)}"


def site_uris(data: Sequence[str]) -> tuple[SiteUri, ...]:
    """The data of single sites among those of a request; none where all nodes share the same."""
    found = (_SITE.fullmatch(word) for word in data)
    return tuple(SiteUri(match[1], match[2]) for match in found if match is not None)


def shared_uris(data: Sequence[str]) -> tuple[str, ...]:
    """The absolute paths and URIs that all nodes share."""
    return tuple(word for word in data if _SITE.fullmatch(word) is None)


def refuse_site_data(data: Sequence[str], command: str) -> None:
    """Refuse data of single sites, where a command cannot bring them.

    Raises:
        UsageError: there are some.
    """
    if own := site_uris(data):
        raise UsageError(
            f"--data {own[0].public} is data of one site, and launch {command} knows only data of "
            "all nodes. Leave SITE= out, or launch the script by itself."
        )


def parse_data(
    words: Sequence[str], variable: str, absolute: Callable[[str], Path]
) -> tuple[str, ...]:
    """What `--data`, or `LAUNCH_DATA` (words as in a shell), names.

    Args:
        words: of the option; none where it was not given.
        variable: the value of `LAUNCH_DATA`.
        absolute: makes a path of this machine absolute.

    Returns:
        Absolute paths and URIs, or `SITE=URI`.

    Raises:
        UsageError: one is empty, of a kind that is not known, or contradicts another.
    """
    if not words:
        try:
            words = shlex.split(variable)
        except ValueError as error:
            raise UsageError(f"LAUNCH_DATA cannot be read: {error}. Close its quotes.") from error
    data = tuple(_parsed(word, absolute) for word in words)
    _check_sites(site_uris(data), shared_uris(data))
    return data


def _parsed(word: str, absolute: Callable[[str], Path]) -> str:
    match = _SITE.fullmatch(word)
    if match is None or _is_there(absolute(word)):  # such as a folder date=2024-01-01
        return _shared(word, absolute)
    site, uri = match[1], _uri(match[2], word)
    if not scheme_of(uri) and not uri.startswith("/"):
        raise UsageError(
            f"--data {word}: the path of a site's own nodes has to be absolute, such as "
            f"{site}=/data. There is no {word} on this machine either."
        )
    return f"{site}={uri}"


def _is_there(path: Path) -> bool:
    with contextlib.suppress(OSError):  # too long for a name
        return path.exists()
    return False


def _shared(word: str, absolute: Callable[[str], Path]) -> str:
    uri = _uri(word, word)
    return uri if scheme_of(uri) else str(absolute(uri))


def _uri(text: str, word: str) -> str:
    """A URI of a known kind, or a path."""
    if not text.strip():
        raise UsageError(
            "--data is empty. Name a folder, a file or a URI such as s3://bucket/set."
            if text == word
            else f"--data {word} names no data. Name a folder, a file or a URI after the =."
        )
    scheme = scheme_of(text)
    q.refuse_relative_uri(text, "--data")
    if scheme == "file":
        return unquote(urlsplit(text).path)
    if scheme and scheme not in SCHEMES:
        raise UsageError(
            f"--data {public_uri(word)}: {scheme}:// is not known. Use a path, s3://, gs:// or "
            "https://, or mount it and give its path."
        )
    return text


def _check_sites(own: Sequence[SiteUri], shared: Sequence[str]) -> None:
    for site, n in Counter(each.site for each in own).items():
        if n > 1:
            raise UsageError(
                f"--data names the site {site} {n} times. Give each site one folder or URI."
            )
    if own and shared:
        raise UsageError(
            f"--data names data of a site ({own[0].public}) and data of all "
            f"({public_uri(shared[0])}). Give every site its own (SITE=URI), or all the same."
        )

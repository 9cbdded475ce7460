"""Where data come from, as people may see it: without passwords and signatures."""

import re
from urllib.parse import unquote, urlsplit

WEB = frozenset({"http", "https"})
SCHEMES = frozenset({"s3", "gs", "gcs", *WEB})
_USER = re.compile(r"(?<=://)[^/@\s]*@")
_ANY_QUERY = re.compile(r"\?[^\s)'\"]+")
_QUERY = re.compile(r"(https?://[^\s?#]*)[?#]\S*")


def scheme_of(uri: str) -> str:
    """`s3`, `https`, …; empty for a path."""
    match = re.match(r"([A-Za-z][A-Za-z0-9+.-]+)://", uri)
    return match[1].lower() if match else ""


def public_uri(uri: str) -> str:
    """A URI, or a text with URIs in it, without user names, passwords and web queries.

    What follows the `?` of a web address is often a signature.
    """
    return _QUERY.sub(r"\1", _USER.sub("", uri))


def without_secrets(text: str, uri: str) -> str:
    """A message about a URI, without what only the URI's owner may know."""
    split = urlsplit(uri) if scheme_of(uri) else None
    for secret in (split.username, split.password) if split is not None else ():
        for each in {secret, unquote(secret)} if secret else ():
            text = text.replace(each, "…") if len(each) > 3 else text
    if scheme_of(uri) in WEB:  # of this address, or of one that its server redirects to
        text = _ANY_QUERY.sub("", text)
    return public_uri(text)

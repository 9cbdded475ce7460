"""What is shipped of a script, and how it is to be run."""

from pathlib import Path

from launcher.config import Environment
from launcher.prepare import ship
from tests.fakes import a_request

FIT = b"import keras\nkeras.Sequential().fit([0.0])\n"


def test_a_script_in_an_encoding_of_its_own_is_shipped_as_it_is(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    environment = Environment(home=tmp_path / "home", cwd=tmp_path)
    for head in ("# coding: latin-1\nname = 'ü'\n".encode("latin-1"), b"\xef\xbb\xbf"):
        script.write_bytes(head + FIT)
        shipped = ship(a_request(script=script), environment, lambda _: None)
        assert shipped.frameworks == ("keras",)

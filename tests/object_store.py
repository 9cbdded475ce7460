"""A real S3 server on this machine (SeaweedFS), which can be killed and started again."""

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.fakes import soon
from tests.ports import free_ports

KEY, SECRET = "testkey", "testsecret"
PUBLIC = "public"  # a bucket that anybody may read
START_S = 60.0


class ObjectStore:
    """The server's process, its data in a folder.

    Args:
        folder: new, for data and configuration.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._folder = folder
        self._sockets = tempfile.mkdtemp(prefix="weed-")  # a socket's path must be short
        self._ports = free_ports(8)
        identity = {
            "name": "test",
            "credentials": [{"accessKey": KEY, "secretKey": SECRET}],
            "actions": ["Admin", "Read", "List", "Tagging", "Write"],
        }
        anybody = {"name": "anonymous", "actions": [f"Read:{PUBLIC}", f"List:{PUBLIC}"]}
        (folder / "s3.json").write_text(json.dumps({"identities": [identity, anybody]}))
        self._process: subprocess.Popen[bytes] | None = None

    def uri(self, bucket: str) -> str:
        """Where `Storage.open` finds a bucket."""
        return (
            f"s3://{KEY}:{SECRET}@{bucket}?endpoint_override=127.0.0.1:{self._ports[0]}"
            "&scheme=http&allow_bucket_creation=true"
        )

    def start(self) -> None:
        """Returns when it answers."""
        names = ("s3.port", "master.port", "volume.port", "filer.port")
        grpc = ("s3.port.grpc", "master.port.grpc", "volume.port.grpc", "filer.port.grpc")
        ports = [f"-{name}={port}" for name, port in zip((*names, *grpc), self._ports, strict=True)]
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    str(Path(sys.executable).parent / "weed"),
                    "server",
                    "-ip=127.0.0.1",
                    "-ip.bind=127.0.0.1",
                    f"-dir={self._folder}",
                    "-s3",
                    f"-s3.config={self._folder / 's3.json'}",
                    "-s3.port.iceberg=0",
                    "-s3.port.lance=0",
                    "-master.telemetry=false",
                    "-master.electionTimeout=1s",
                    "-master.volumeSizeLimitMB=64",
                    "-volume.max=100",
                    *ports,
                ],
                stdout=log,
                stderr=log,
                env=os.environ | {"HOME": str(self._folder), "TMPDIR": self._sockets},
            )
        assert soon(self._answers, START_S), (self._folder / "log").read_text()[-2000:]

    def kill(self) -> None:
        """As a machine that loses its power."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def freeze(self, is_frozen: bool) -> None:
        """As a server that hangs: it accepts connections and answers nothing; or let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP if is_frozen else signal.SIGCONT)

    def close(self) -> None:
        """End it, and remove its data."""
        if self._process is not None:
            self.kill()
        shutil.rmtree(self._folder, ignore_errors=True)
        shutil.rmtree(self._sockets, ignore_errors=True)

    def _answers(self) -> bool:
        from pyarrow import fs

        try:
            filesystem, _ = fs.FileSystem.from_uri(self.uri("probe"))
            filesystem.create_dir("probe")
            with filesystem.open_output_stream("probe/x") as stream:
                stream.write(b"x")
        except OSError:
            return False
        return True

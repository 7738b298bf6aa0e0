"""Other sides of a prefix that are really there: an ssh server on loopback, a process namespace of its own."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@pytest.fixture(scope="session")
def ssh_prefix(tmp_path_factory) -> Iterator[tuple[str, ...]]:
    """`ssh` to an OpenSSH server of this user on loopback, with keys of its own."""
    sshd = shutil.which("sshd", path="/usr/sbin:/usr/local/sbin:" + os.environ["PATH"])
    if sshd is None or shutil.which("ssh") is None:
        pytest.skip("no OpenSSH server and client are installed")
    folder, port = tmp_path_factory.mktemp("ssh"), free_port()
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    (folder / "config").write_text(
        f"Port {port}\nListenAddress 127.0.0.1\nHostKey {folder}/host\nAuthorizedKeysFile {folder}/user.pub\n"
        f"StrictModes no\nUsePAM no\nPermitRootLogin yes\nPidFile {folder}/pid\nPasswordAuthentication no\n"
    )
    options = ("StrictHostKeyChecking=no", f"UserKnownHostsFile={folder}/known", "BatchMode=yes", "LogLevel=ERROR")
    words = [word for option in options for word in ("-o", option)]
    prefix = ("ssh", "-p", str(port), "-i", str(folder / "user"), *words, "127.0.0.1")
    with subprocess.Popen([sshd, "-D", "-e", "-f", folder / "config"], stderr=subprocess.DEVNULL) as server:
        try:
            for _ in range(50):
                if subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode == 0:
                    break
                time.sleep(0.1)
            else:
                pytest.skip("the OpenSSH server does not let this user in")
            yield prefix
        finally:
            server.terminate()


@pytest.fixture(scope="session")
def namespace_prefix() -> tuple[str, ...]:
    """`unshare`: process numbers of its own, as in a container."""
    prefix = ("unshare", "--pid", "--fork", "--mount-proc")
    if (
        shutil.which("unshare") is None
        or subprocess.run([*prefix, "true"], check=False, capture_output=True).returncode
    ):
        pytest.skip("process namespaces need util-linux and root")
    return prefix

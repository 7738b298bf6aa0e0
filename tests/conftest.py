"""What tests of several rooms share; other machines that are really there: ssh, a process namespace, a Slurm."""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import socket
import stat
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


# What starts ranks, servers or machines wants cores for itself: with `--dist loadgroup` these run one after another.
STARTS_PROCESSES = (
    "evals",
    "smoke",
    "tools",
    "training_env",
    "test_http.py",
    "test_smoke_over_mcp.py",
    "test_wheel.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put the tests that start processes of their own on one worker."""
    for item in items:
        if item.path.relative_to(Path(__file__).parent).parts[0] in STARTS_PROCESSES:
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.fixture
def anyio_backend() -> str:
    """asyncio, as the server runs on it."""
    return "asyncio"


def free_port() -> int:
    """A port of loopback that nobody has now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def ports_in_a_row(count: int) -> int:
    """The first of several ports of loopback that nobody has now.

    They lie below the range that outgoing connections take, where another run's jobs would get in between, and are
    drawn, so that two runs that start at once look in different places.
    """
    for _ in range(200):
        first = random.randrange(10_000, 30_000)
        with contextlib.ExitStack() as held, contextlib.suppress(OSError):
            for port in range(first, first + count):
                held.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise OSError(f"no {count} free ports in a row on loopback")


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


SLURM_CONF = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CryptoType=crypto/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0,sched_min_interval=0
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=10
SlurmdTimeout=10
InactiveLimit=0
KillWait=2
MinJobAge={min_job_age}
RequeueExit=99
NodeName=n[1-2] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=2 RealMemory=1000 State=UNKNOWN
PartitionName=smoke Nodes=ALL Default=YES MaxTime=60 State=UP PriorityTier=1 OverSubscribe=NO
PartitionName=urgent Nodes=ALL MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
"""


ACCOUNTING_CONF = """
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={port}
AccountingStoragePass={folder}/munge.socket
"""
SLURMDBD_CONF = """
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database}
StorageUser=slurm
StoragePass=slurm
StorageLoc=slurm
LogFile={folder}/slurmdbd.log
PidFile={folder}/slurmdbd.pid
"""


class LocalSlurm:
    """Controller and two virtual nodes on this host, with a munge of their own, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.accounting = ""
        self.conf = folder / "slurm.conf"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Both nodes idle."""
        port = ports_in_a_row(3)
        first, last = port + 1, port + 2
        values = {"host": socket.gethostname().partition(".")[0], "port": port, "folder": self.folder}
        self.conf.write_text(SLURM_CONF.format(**values, first=first, last=last, min_job_age=300))
        os.environ["SLURM_CONF"] = str(self.conf)
        with self.conf.open("a") as conf:
            conf.write(self.accounting)
        if "munged" not in self.processes:
            self.start_munge()
        self.spawn("slurmctld", "slurmctld", "-D", "-c", "-f", str(self.conf))
        for node in ("n1", "n2"):
            self.start_node(node)
        self.wait(lambda: self.said("sinfo", "-h", "-o", "%T %D") == "idle 2", "slurmctld")

    def start_munge(self) -> None:
        """munged refuses to run as root, so as the user of its package."""
        place = self.folder / "munge"
        place.mkdir(mode=0o755)
        (place / "key").write_bytes(os.urandom(1024))
        (place / "key").chmod(0o400)
        for path in (place, place / "key"):
            shutil.chown(path, "munge", "munge")
        files = {"key-file": "key", "log-file": "log", "pid-file": "pid", "seed-file": "seed", "socket": "socket"}
        options = [f"--{option}={place / name}" for option, name in files.items()]
        self.spawn("munged", "runuser", "-u", "munge", "--", "munged", "--foreground", "--force", *options)
        (self.folder / "munge.socket").symlink_to(place / "socket")

    def start_accounting(self) -> None:
        """A MariaDB and a slurmdbd of their own; before `start`."""
        self.start_munge()
        place, port = self.folder / "database", ports_in_a_row(2)
        database = port + 1
        install = ["mariadb-install-db", "--no-defaults", "--auth-root-authentication-method=normal", "--user=root"]
        subprocess.run([*install, f"--datadir={place}"], check=True, capture_output=True)
        network = [f"--port={database}", "--bind-address=127.0.0.1", f"--socket={self.folder}/mysql.socket"]
        self.spawn("mariadbd", "mariadbd", "--no-defaults", f"--datadir={place}", "--user=root", *network)
        who = "slurm@localhost"
        make = f"create database slurm; create user {who} identified by 'slurm'; grant all on slurm.* to {who}"
        client = ["mariadb", "--no-defaults", "-u", "root", f"--socket={self.folder}/mysql.socket", "-e", make]
        self.wait(lambda: subprocess.run(client, check=False, capture_output=True).returncode == 0, "mariadbd")
        values = {"folder": self.folder, "port": port, "database": database}
        conf = self.folder / "slurmdbd.conf"
        conf.write_text(SLURMDBD_CONF.format(**values))
        conf.chmod(0o600)
        os.environ["SLURM_CONF"] = str(self.conf)
        self.conf.write_text(f"ClusterName=test\nSlurmctldHost=x\nAuthInfo=socket={self.folder}/munge.socket\n")
        self.spawn("slurmdbd", "slurmdbd", "-D")
        self.wait(lambda: "slurmdbd version" in self.log("slurmdbd.log"), "slurmdbd")
        self.accounting = ACCOUNTING_CONF.format(**values)

    def wait(self, until: Callable[[], bool], name: str) -> None:
        """Until a daemon is there; one that has ended, such as for a port that somebody else took, is told at once."""
        for _ in range(200):
            if until():
                return
            ended = [one for one, process in self.processes.items() if process.poll() is not None]
            if ended:
                logs = "".join(self.log(f"{one}.out")[-600:] for one in ended)
                pytest.fail(f"{', '.join(ended)} ended at once{self._others()}: {logs}")
            time.sleep(0.1)
        pytest.fail(f"{name} does not start{self._others()}: {self.log(name + '.out')[-600:]}")

    def _others(self) -> str:
        """The controllers of other test runs on this machine, which share its processors."""
        mine = {process.pid for process in self.processes.values()}
        found = [p for p in psutil.process_iter(["name"]) if p.info["name"] == "slurmctld" and p.pid not in mine]
        return f" (beside another slurmctld, process {', '.join(str(p.pid) for p in found)})" if found else ""

    def log(self, name: str) -> str:
        """A log as far as it is written."""
        return (self.folder / name).read_text() if (self.folder / name).exists() else ""

    def start_node(self, node: str) -> None:
        """A slurmd."""
        self.spawn(node, "slurmd", "-D", "-f", str(self.conf), "-N", node)

    def spawn(self, name: str, *words: str) -> None:
        """Keep a daemon as a child."""
        found = shutil.which(words[0], path=f"/usr/sbin:/sbin:{os.environ['PATH']}") or words[0]
        log = (self.folder / f"{name}.out").open("ab")
        self.processes[name] = subprocess.Popen([found, *words[1:]], stdout=log, stderr=log, stdin=subprocess.DEVNULL)

    def said(self, *words: str) -> str:
        """The output of one of Slurm's commands."""
        return subprocess.run(words, check=False, capture_output=True, text=True).stdout.strip()

    def stop(self) -> None:
        """Nodes first, so that their jobs end with them."""
        subprocess.run(["scancel", "--user=root"], check=False, capture_output=True)
        time.sleep(0.5)
        for process in reversed(self.processes.values()):
            process.terminate()
        _, stuck = psutil.wait_procs([psutil.Process(p.pid) for p in self.processes.values() if p.poll() is None], 5)
        for process in stuck:
            process.kill()
        os.environ.pop("SLURM_CONF", None)


def slurm_folder(tmp_path_factory, *more: str) -> Path:
    """Where a Slurm can be started; skips with the reason where it cannot."""
    path = f"/usr/sbin:/sbin:{os.environ['PATH']}"
    missing = [
        name for name in ("slurmctld", "slurmd", "munged", "sbatch", *more) if shutil.which(name, path=path) is None
    ]
    if missing:
        pytest.skip(f"no Slurm to test with: {', '.join(missing)} not installed (Debian: slurm-wlm, munge)")
    if os.geteuid() != 0:
        pytest.skip("starting Slurm and munge takes root")
    folder = tmp_path_factory.mktemp("slurm")
    for place in (folder, *folder.parents[:3]):
        if not place.stat().st_mode & stat.S_IXOTH:  # munged runs as another user
            place.chmod(0o755)
    (folder / "state").mkdir()
    return folder


@pytest.fixture(scope="session")
def slurm(tmp_path_factory) -> Iterator[LocalSlurm]:
    """A Slurm of two nodes without accounting, started for the tests and stopped after them."""
    cluster = LocalSlurm(slurm_folder(tmp_path_factory))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def accounted_slurm(tmp_path_factory) -> Iterator[LocalSlurm]:
    """The same with accounting."""
    cluster = LocalSlurm(slurm_folder(tmp_path_factory, "slurmdbd", "mariadbd"))
    before = os.environ.get("SLURM_CONF")
    try:
        cluster.start_accounting()
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        if before:
            os.environ["SLURM_CONF"] = before

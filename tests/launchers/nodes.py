"""Machines on one machine: network namespaces with addresses, host names and an /etc/hosts of their own."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

import pytest

TOOLS = ("ip", "unshare", "mount", "hostname")
ROOT_OF_A_NODE = 'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"'


class Node:
    """A machine: its processes see its own network, host name and hosts file, and the files of all."""

    def __init__(self, namespace: str, host: str, address: str, hosts: Path, log: Path) -> None:
        self.host = host
        self._namespace = namespace
        self._address = address
        self._hosts = hosts
        self._log = log
        self._started: list[tuple[subprocess.Popen[bytes], IO[bytes]]] = []

    def connect(self) -> None:
        """Give the cable's end its address, and plug it in."""
        ip("-n", self._namespace, "addr", "add", f"{self._address}/24", "dev", "eth0")
        ip("-n", self._namespace, "link", "set", "lo", "up")
        self.plug(is_in=True)

    def plug(self, *, is_in: bool) -> None:
        """Plug the cable in or out; what is sent without it is lost, and nobody hears that the other side is gone."""
        ip("-n", self._namespace, "link", "set", "eth0", "up" if is_in else "down")

    def start(self, command: Sequence[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
        """Start a process on this machine."""
        inside = ["ip", "netns", "exec", self._namespace, "unshare", "--uts", "--mount", "sh", "-c", ROOT_OF_A_NODE]
        log = self._log.open("ab")
        started = subprocess.Popen(
            [*inside, "sh", self.host, str(self._hosts), *command],
            env=os.environ | environment | {"GLOO_SOCKET_IFNAME": "eth0", "PYTHONFAULTHANDLER": "1"},
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        self._started.append((started, log))
        return started

    def processes(self) -> list[int]:
        """List the processes of this machine."""
        return [int(pid) for pid in ip("netns", "pids", self._namespace).split()]

    def signal(self, number: signal.Signals) -> None:
        """Send every process of this machine a signal."""
        for pid in self.processes():
            with suppress(ProcessLookupError):
                os.kill(pid, number)

    def lose_power(self) -> None:
        """End everything at once, without a word to the other machines."""
        self.plug(is_in=False)
        end = time.monotonic() + 30
        while self.processes():  # one may have started another meanwhile
            assert time.monotonic() < end, f"processes {self.processes()} of {self.host} outlive a SIGKILL"
            self.signal(signal.SIGKILL)
            time.sleep(0.01)
        for started, log in self._started:
            started.wait()
            log.close()
        self._started.clear()

    def said(self) -> str:
        """Give the end of what its processes printed."""
        return self._log.read_text(errors="replace")[-9000:] if self._log.exists() else ""


@contextmanager
def two_nodes(folder: Path) -> Iterator[tuple[Node, Node]]:
    """Make two machines and a cable between them; tear them down whatever happens."""
    refuse_what_cannot_be()
    names = [f"ttl-{os.getpid()}-{side}" for side in "ab"]
    hosts, addresses = ["node-a", "node-b"], ["10.213.77.1", "10.213.77.2"]
    file = folder / "hosts"
    file.write_text("127.0.0.1 localhost\n" + "".join(f"{a} {h}\n" for a, h in zip(addresses, hosts, strict=True)))
    nodes = [
        Node(name, host, address, file, folder / f"{host}.log")
        for name, host, address in zip(names, hosts, addresses, strict=True)
    ]
    try:
        for name in names:
            ip("netns", "add", name)
        ends = ["eth0", "netns", names[0], "type", "veth", "peer", "name", "eth0", "netns", names[1]]
        ip("link", "add", *ends)
        for node in nodes:
            node.connect()
        yield nodes[0], nodes[1]
    except BaseException:
        for node in nodes:
            node.signal(signal.SIGABRT)  # Python then writes into the log where its threads are
        time.sleep(2)
        for node in nodes:
            print(f"--- {node.host} ---\n{node.said()}", file=sys.stderr)
        raise
    finally:
        for node, name in zip(nodes, names, strict=True):
            with suppress(subprocess.CalledProcessError):  # it was never made
                node.lose_power()
                ip("netns", "del", name)


def refuse_what_cannot_be() -> None:
    """Skip the test where this machine cannot play two, and say what it needs."""
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"two nodes on one machine need {', '.join(missing)}: apt-get install iproute2 util-linux hostname")
    if os.geteuid() != 0:
        pytest.skip("two nodes on one machine need root (network, UTS and mount namespaces): sudo make test-all")
    probe = subprocess.run(
        ["unshare", "--net", "--uts", "--mount", "true"],  # noqa: S607 wherever the system has it
        capture_output=True,
        check=False,
    )
    if probe.returncode:
        pytest.skip(f"two nodes on one machine need CAP_SYS_ADMIN and CAP_NET_ADMIN: {probe.stderr.decode().strip()}")


def ip(*arguments: str) -> str:
    """Run iproute2's ip; give what it prints."""
    command = ["ip", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout

"""A real SLURM cluster on this host's loopback: its own munge, one controller, several node daemons; no systemd."""

from __future__ import annotations

import contextlib
import os
import random
import secrets
import signal
import socket
import subprocess
from pathlib import Path

from installing import why_missing
from running import wait_until

PACKAGES = ("slurmctld", "slurmd", "slurm-client", "munge")
PROGRAMS = ("slurmctld", "slurmd", "sbatch", "munged")

CONF = """\
ClusterName=rollmilltest
SlurmctldHost=localhost(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
SlurmctldPort={port}
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0,bf_interval=1,sched_min_interval=0,requeue_setup_env_fail
SlurmdTimeout=300
MessageTimeout=60
TCPTimeout=30
BatchStartTimeout=300
UnkillableStepTimeout=300
MinJobAge=1000
KillWait=30
SlurmdParameters=config_overrides
"""


def missing() -> str:
    """Why there can be no cluster here; empty after everything is installed."""
    return why_missing(PROGRAMS, PACKAGES) or ("" if os.geteuid() == 0 else "starting SLURM needs root")


class Cluster:
    """``nodes`` nodes of one core each, called n1, n2, ...; everything it starts is a child of this process."""

    def __init__(self, folder: Path, nodes: int = 3) -> None:
        self.folder = folder
        self.nodes = [f"n{k}" for k in range(1, nodes + 1)]
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}
        (folder / "state").mkdir(parents=True)
        for node in self.nodes:
            (folder / f"spool.{node}").mkdir()
        ports = free_ports(nodes + 1)
        place = "NodeHostname=localhost NodeAddr=127.0.0.1 CPUs=1 RealMemory=1000 State=UNKNOWN"
        lines = [f"NodeName={node} {place} Port={port}" for node, port in zip(self.nodes, ports[1:])]
        lines.append(f"PartitionName=main Nodes=n[1-{nodes}] Default=YES MaxTime=INFINITE State=UP")
        self.conf = folder / "slurm.conf"
        self.conf.write_text(CONF.format(folder=folder, port=ports[0]) + "\n".join(lines) + "\n")
        self.environment = {**os.environ, "SLURM_CONF": str(self.conf)}

    def start(self) -> None:
        key = self.folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        names = {"socket": "munge.socket", "pid-file": "munge.pid", "log-file": "munge.log", "seed-file": "munge.seed"}
        files = [f"--{option}={self.folder / name}" for option, name in names.items()]
        self._daemon("munge", "munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}", *files)
        wait_until(lambda: (self.folder / "munge.socket").exists(), what="munge to answer")
        self._daemon("slurmctld", "slurmctld", "-D", "-c")
        for node in self.nodes:
            self.start_node(node)
        wait_until(lambda: self.states().count("idle") == len(self.nodes), what="all nodes to be idle")

    def start_node(self, node: str) -> None:
        self._daemon(node, "slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """End the daemon of a node without a word, and have the controller notice at once."""
        self._daemons[node].kill()
        self._daemons[node].wait()
        self.call("scontrol", "update", f"nodename={node}", "state=down", "reason=killed")
        # Its last message may still be under way, and would make it available again: jobs would be sent to the dead.
        self.call("scontrol", "update", f"nodename={node}", "state=drain", "reason=killed")

    def revive_node(self, node: str) -> None:
        self.start_node(node)
        self.call("scontrol", "update", f"nodename={node}", "state=resume")
        gone = ("down", "drain")  # with a mark behind it, or an ending
        wait_until(lambda: not any(s.startswith(gone) for s in self.states()), what="the node to come back")

    def states(self) -> list[str]:
        """Of all nodes; none while the controller is starting."""
        done = subprocess.run(["sinfo", "-h", "-N", "-o", "%T"], env=self.environment, capture_output=True, text=True)
        return done.stdout.split()

    def call(self, *command: str) -> str:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, f"{command}: {done.stderr}"
        return done.stdout

    def start_now(self, job: str) -> None:
        """A requeued job would wait for two minutes. Some it needs: a node refuses what it ended in the same second."""
        wait_until(lambda: not any("completing" in state for state in self.states()), what="nodes to be free")
        self.call("scontrol", "update", f"jobid={job}", "StartTime=now+2")

    def stop(self) -> None:
        """Jobs first, then the daemons, last to first."""
        subprocess.run(["scancel", "--quiet", "--user=root"], env=self.environment, check=False, capture_output=True)
        for daemon in reversed(self._daemons.values()):
            daemon.send_signal(signal.SIGTERM)
        for daemon in self._daemons.values():
            try:
                daemon.wait(60)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()

    def _daemon(self, name: str, *command: str) -> None:
        with open(self.folder / f"{name}.out", "ab") as output:
            self._daemons[name] = subprocess.Popen(
                command, env=self.environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now, below those that Linux hands out to others meanwhile."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(15_000, 32_000), 1000):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == count:
            return found
    raise AssertionError(f"no {count} free ports")

"""Turns itself into the ViZDoom engine, after making sure that the engine cannot outlive its parent.

Run by path and without rollmill, because every engine pays for its start (about 15 ms)::

    python -I -S launcher.py FOLDER PARENT_PID NETWORK CORES ENGINE DATA [ARGUMENT ...]
    python -I -S launcher.py --try-network

DATA is the engine's ``vizdoom.pk3``. NETWORK is ``shared`` for the machine's own, ``new`` for one in which there is
only a loopback, or the process id of an engine whose network this one is to join. CORES are numbers with commas
between, or ``all`` for those of the parent. The second form tells by its exit status whether this machine allows
networks of one's own.

The engine by itself ignores SIGTERM, stays when its parent is killed, keeps every file descriptor it
inherits (locks and pipes too), and writes ``_vizdoom.ini`` and ``_vizdoom/`` into the current folder.
"""

import os
import sys

PR_SET_PDEATHSIG = 1  # from <linux/prctl.h>
SIGKILL = 9  # importing signal would take longer than all of this does


def die_with_parent(parent: int) -> None:
    """Ask Linux to SIGKILL this process when the thread that started it ends; it lasts across exec."""
    import ctypes

    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, SIGKILL) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")
    if os.getppid() != parent:  # it was gone before the request
        sys.exit(f"the parent process {parent} is gone")


def run_on(cores: str) -> None:
    """Keep to these cores; a machine that does not know them leaves it as it was."""
    if cores != "all" and hasattr(os, "sched_setaffinity"):
        try:
            os.sched_setaffinity(0, {int(core) for core in cores.split(",")})
        except OSError:
            return


# -- networks ---------------------------------------------------------------------------------------

CLONE_NEWUSER, CLONE_NEWNET = 0x10000000, 0x40000000  # from <linux/sched.h>
SIOCGIFFLAGS, SIOCSIFFLAGS, IFF_UP = 0x8913, 0x8914, 1  # from <linux/sockios.h>, <linux/if.h>
JOIN_TRIES, JOIN_SECONDS = 100, 0.02


def new_network() -> None:
    """Leave the machine's network for one of this process's own, which nothing outside can reach."""
    import ctypes
    import socket
    import struct
    from fcntl import ioctl

    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET) != 0:  # only root may do it just so
        user, group = os.getuid(), os.getgid()
        _succeed(libc.unshare(CLONE_NEWUSER | CLONE_NEWNET), ctypes.get_errno())
        for name, text in (("setgroups", "deny"), ("uid_map", f"{user} {user} 1"), ("gid_map", f"{group} {group} 1")):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:  # the loopback is down at first
        flags = struct.unpack_from("16sh", ioctl(any_socket, SIOCGIFFLAGS, struct.pack("16sh14x", b"lo", 0)))[1]
        ioctl(any_socket, SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | IFF_UP))


def join_network(pid: str) -> None:
    """Enter the network of another engine; of its user's rights, too, where it needed some of its own for that."""
    import ctypes
    import time

    libc = ctypes.CDLL(None, use_errno=True)
    for tries in range(JOIN_TRIES):
        try:
            own, other = os.stat("/proc/self/ns/user").st_ino, os.stat(f"/proc/{pid}/ns/user").st_ino
            kinds = [("user", CLONE_NEWUSER)] * (own != other) + [("net", CLONE_NEWNET)]
            found = [(os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY), kind) for name, kind in kinds]
            break
        except PermissionError:  # for a moment, while it is still turning itself into the engine
            if tries == JOIN_TRIES - 1:
                raise
            time.sleep(JOIN_SECONDS)
    for descriptor, kind in found:
        _succeed(libc.setns(descriptor, kind), ctypes.get_errno())
        os.close(descriptor)


def _succeed(result: int, number: int) -> None:
    if result != 0:
        raise OSError(number, os.strerror(number))


def enter_network(network: str) -> None:
    if network == "new":
        new_network()
    elif network != "shared":
        join_network(network)


# -- files and scheduling ---------------------------------------------------------------------------


def close_inherited_files() -> None:
    """Close all but stdin, stdout and stderr. Listed, because a limit of a billion files is common."""
    for name in os.listdir("/dev/fd"):
        descriptor = int(name)
        if descriptor > 2:
            try:
                os.close(descriptor)
            except OSError:  # the one that listed the folder
                continue


def wait_for_turn() -> None:
    """Do as ``rollmill.core.machine.wait_for_turn``; a process that steps aside already is left as it is."""
    if os.sched_getscheduler(0) == os.SCHED_IDLE:
        return
    try:
        os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))
    except OSError:
        return  # some sandboxes do not allow it


def use_huge_pages() -> None:
    """Have the C library ask for huge pages, so that engines which take turns on a core evict less of each other.

    One heap for all threads: each heap would take huge pages of its own, and an engine has one busy thread.
    """
    os.environ.setdefault("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1:glibc.malloc.arena_max=1")


def main(arguments: list[str]) -> None:
    folder, parent, network, cores, engine, data, *rest = arguments
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    if "-host" in rest or "-join" in rest:  # such an engine tells of everybody who joins, on stderr
        log = os.open("engine.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
    close_inherited_files()
    if sys.platform == "linux":
        enter_network(network)  # first: the rights that come with it would undo the next
        die_with_parent(int(parent))
        run_on(cores)
        wait_for_turn()
        use_huge_pages()
    with open("engine.pid", "w") as file:
        file.write(str(os.getpid()))
    os.execv(engine, [data, *rest])  # the engine takes the folder of argv[0] for its own


if __name__ == "__main__":
    if sys.argv[1:] == ["--try-network"]:
        new_network()
    else:
        main(sys.argv[1:])

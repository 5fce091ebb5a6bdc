"""Turns itself into the ViZDoom engine, after making sure that the engine cannot outlive its parent.

Run by path and without rollmill, because every engine pays for its start (about 15 ms)::

    python -I -S vizdoom_launcher.py FOLDER PARENT_PID ENGINE DATA [ARGUMENT ...]

DATA is the engine's ``vizdoom.pk3``.

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
    """As ``rollmill.core.machine.wait_for_turn``; one that is to step aside does so more than that."""
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
    folder, parent, engine, data, *rest = arguments
    os.chdir(folder)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    close_inherited_files()
    if sys.platform == "linux":
        die_with_parent(int(parent))
        wait_for_turn()
        use_huge_pages()
    with open("engine.pid", "w") as file:
        file.write(str(os.getpid()))
    os.execv(engine, [data, *rest])  # the engine takes the folder of argv[0] for its own


if __name__ == "__main__":
    main(sys.argv[1:])

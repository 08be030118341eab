#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Starts a program as several ranks, which find each other by make_gloo_backend().

  launch.py --ranks 4 -- build/train --epochs 3
  launch.py --ranks 8 --machines 2 --machine 0 --master 10.0.0.1 --port 29500 -- build/train

The second line, on the machine 10.0.0.1, starts four of the eight ranks there; the same line with --machine 1, on a
second machine, starts the others. Ranks get the environment variables of torchrun: RANK, WORLD_SIZE, LOCAL_RANK,
LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT and TORCHELASTIC_RESTART_COUNT, and OMP_NUM_THREADS if it is not set.

If a rank fails, the others get --grace seconds to say what they know, and are then ended. With --restarts, all ranks
start again, so a program that begins with its last checkpoint goes on. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed
on once; the ranks then have --stop-grace seconds, for example to save a checkpoint. A second signal ends them. The exit
status is that of the first rank that failed, or 128 and the number of its signal. On Linux, the ranks get SIGTERM if
this program is killed. A script that starts the training must do so by `exec`, because only the script gets this signal.
"""

import argparse
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time


def parse_arguments():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--ranks", type=int, required=True, help="the number of processes on all machines")
    parser.add_argument("--machines", type=int, default=1, help="the number of machines, each with as many ranks")
    parser.add_argument("--machine", type=int, help="the number of this machine, from 0")
    parser.add_argument("--master", default="127.0.0.1", help="the address of machine 0")
    parser.add_argument("--port", type=int, help="a free port of machine 0 (default with one machine: any)")
    parser.add_argument("--restarts", type=int, default=0, help="how often all ranks may start again after a failure")
    parser.add_argument("--grace", type=float, default=5.0, help="seconds from the first failure to SIGTERM, then SIGKILL")
    parser.add_argument("--stop-grace", type=float, default=60.0, help="seconds from a signal to the end of all ranks")
    parser.add_argument("command", nargs="+", help="the program and its arguments, after --")
    options, unknown = parser.parse_known_args()
    if unknown:
        parser.error(f"unknown options {' '.join(unknown)}; options of the program come after --")
    if options.ranks < 1 or options.machines < 1:
        parser.error(f"--ranks {options.ranks} and --machines {options.machines} must be at least 1")
    if options.ranks % options.machines:
        parser.error(f"--ranks {options.ranks} must be a multiple of --machines {options.machines}")
    if options.machine is None and options.machines > 1:
        parser.error("with several --machines, pass --machine, the number of this one from 0")
    options.machine = options.machine or 0
    if options.port is not None and not 1 <= options.port <= 65535:
        parser.error(f"--port must be from 1 to 65535, but is {options.port}")
    if not 0 <= options.machine < options.machines:
        parser.error(f"--machine must be from 0 to {options.machines - 1}, but is {options.machine}")
    if options.machines > 1 and (options.port is None or options.master == "127.0.0.1"):
        parser.error("with several --machines, pass --master and --port, the same ones on all of them")
    if options.restarts < 0 or options.grace < 0 or options.stop_grace < 0:
        parser.error("--restarts, --grace and --stop-grace must not be negative")
    if options.machines > 1 and options.restarts:
        parser.error("--restarts works on one machine; torchrun restarts ranks on several")
    return options


def free_port():
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return listener.getsockname()[1]


def follow_the_launcher(launcher):
    """Returns a function that a new process calls, so that it gets SIGTERM when the process `launcher` dies."""
    if not sys.platform.startswith("linux"):
        return None
    set_death_signal = ctypes.CDLL(None).prctl
    pr_set_pdeathsig = 1

    def follow():
        set_death_signal(pr_set_pdeathsig, signal.SIGTERM)
        if os.getppid() != launcher:  # It died before prctl(), so no signal will come.
            os._exit(128 + signal.SIGTERM)

    return follow


def start(options, attempt):
    local = options.ranks // options.machines
    port = options.port or free_port()
    processes = []
    for local_rank in range(local):
        variables = {
            "RANK": options.machine * local + local_rank,
            "WORLD_SIZE": options.ranks,
            "LOCAL_RANK": local_rank,
            "LOCAL_WORLD_SIZE": local,
            "MASTER_ADDR": options.master,
            "MASTER_PORT": port,
            "TORCHELASTIC_RESTART_COUNT": attempt,
        }
        environment = {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // local))} | dict(os.environ)
        environment |= {name: str(value) for name, value in variables.items()}
        try:
            # A session of its own, so that a terminal sends its signals to this program alone, and so that signals
            # also reach what a rank has started.
            processes.append(
                subprocess.Popen(
                    options.command,
                    env=environment,
                    start_new_session=True,
                    preexec_fn=follow_the_launcher(os.getpid()),
                )
            )
        except OSError as error:
            end(processes, 0.0, [])
            sys.exit(f"launch.py: can't start {options.command[0]}: {error.strerror}")
    return processes


def wait(processes, seconds, until=lambda: False):
    limit = time.monotonic() + seconds
    while any(process.poll() is None for process in processes) and time.monotonic() < limit and not until():
        time.sleep(0.02)


def send(processes, number):
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)


def end(processes, grace, signals):
    """Waits for the processes. After `grace` seconds or a signal, asks the rest to end. Ends them two seconds later."""
    wait(processes, grace, until=lambda: signals)
    send(processes, signal.SIGTERM)
    wait(processes, 2.0)
    send(processes, signal.SIGKILL)
    for process in processes:
        process.wait()


def stop(processes, signals, grace):
    """Passes the first signal on, and waits for the processes until a second one or `grace` seconds."""
    send(processes, signals[0])
    wait(processes, grace, until=lambda: len(signals) > 1)
    send(processes, signal.SIGKILL)
    for process in processes:
        process.wait()
    sys.exit(128 + signals[0])


def run(options, attempt, signals):
    """Returns the status of the first rank that fails, or 0."""
    processes = start(options, attempt)
    while not signals:
        states = [process.poll() for process in processes]
        failed = [rank for rank, state in enumerate(states) if state not in (None, 0)]
        if failed:
            rank = failed[0] + options.machine * len(processes)
            status = states[failed[0]]
            print(
                f"launch.py: rank {rank} ended with {'signal' if status < 0 else 'status'} {abs(status)}",
                file=sys.stderr,
            )
            end(processes, options.grace, signals)
            return status if status > 0 else 128 - status
        if all(state == 0 for state in states):
            return 0
        time.sleep(0.02)
    stop(processes, signals, options.stop_grace)


def main():
    options = parse_arguments()
    signals = []
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda received, frame: signals.append(received))
    for attempt in range(options.restarts + 1):
        status = run(options, attempt, signals)
        if signals:
            sys.exit(128 + signals[0])
        if status == 0 or attempt == options.restarts:
            sys.exit(status)
        print(f"launch.py: starts all ranks again, attempt {attempt + 1} of {options.restarts}", file=sys.stderr)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Runs a program as one rank on each of several hosts: network namespaces with a switch between them.

  network_hosts.py --hosts 4 --link-gbit 1 -- PROGRAM ARGUMENTS

Needs root and iproute2. With --mpi, mpirun starts the ranks over TCP.
"""

import argparse
import os
import pathlib
import signal
import subprocess
import sys
import tempfile


def ip(*arguments):
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


class Hosts:
    """Namespaces with the addresses 10.77.0.1, 10.77.0.2, ... and a bridge, which is the switch."""

    def __init__(self, count, link_gbit=0.0):
        prefix = f"tessera{os.getpid()}_"
        self.switch = prefix + "switch"
        self.hosts = [f"{prefix}{number}" for number in range(count)]
        try:
            self.connect(link_gbit)
        except BaseException:
            self.close()
            raise

    def connect(self, link_gbit):
        for name in [self.switch, *self.hosts]:
            ip("netns", "add", name)
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for number, host in enumerate(self.hosts):
            port = f"port{number}"
            ip("link", "add", port, "netns", self.switch, "type", "veth", "peer", "eth0", "netns", host)
            ip("-n", self.switch, "link", "set", port, "master", "bridge", "up")
            ip("-n", host, "addr", "add", f"{self.address(number)}/24", "dev", "eth0")
            for device in ("eth0", "lo"):
                ip("-n", host, "link", "set", device, "up")
            if link_gbit > 0:
                self.limit(host, "eth0", link_gbit)
                self.limit(self.switch, port, link_gbit)

    @staticmethod
    def address(number):
        return f"10.77.0.{number + 1}"

    @staticmethod
    def limit(namespace, device, gbit):
        """Limits what a device sends. A burst is what passes in a millisecond, since the kernel wakes as rarely."""
        burst = max(100_000, int(gbit * 1e9 / 8 / 1000))
        command = ["tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf"]
        command += ["rate", f"{int(gbit * 1000)}mbit", "burst", f"{burst}", "latency", "50ms"]
        subprocess.run(command, check=True, capture_output=True, text=True)

    def close(self):
        for name in [self.switch, *self.hosts]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    def cut(self, host, state="down"):
        ip("-n", self.switch, "link", "set", f"port{host}", state)

    def start(self, command, **options):
        """Starts one rank on each host, with the environment variables of torchrun."""
        processes = []
        for rank, host in enumerate(self.hosts):
            variables = {
                "RANK": rank,
                "WORLD_SIZE": len(self.hosts),
                "MASTER_ADDR": self.address(0),
                "MASTER_PORT": 29500,
                "OMP_NUM_THREADS": 1,
            }
            environment = dict(os.environ) | {name: str(value) for name, value in variables.items()}
            in_host = ["ip", "netns", "exec", host, *map(str, command)]
            processes.append(subprocess.Popen(in_host, env=environment, **options))
        return processes

    def run_with_mpi(self, command):
        """Returns the status of mpirun on the first host, which starts the others without ssh."""
        with tempfile.TemporaryDirectory() as folder:
            agent = pathlib.Path(folder) / "agent"
            names = " ".join(f"{self.address(number)}) host={host} ;;" for number, host in enumerate(self.hosts))
            agent.write_text(f'#!/bin/sh\ncase "$1" in {names} esac\nshift\nexec ip netns exec "$host" sh -c "$*"\n')
            agent.chmod(0o755)
            addresses = ",".join(self.address(number) for number in range(len(self.hosts)))
            mpirun = ["mpirun", "--allow-run-as-root", "--bind-to", "none", "--mca", "plm_rsh_agent", str(agent)]
            mpirun += ["--mca", "btl", "tcp,self", "--mca", "btl_tcp_if_include", "eth0", "--host", addresses]
            environment = dict(os.environ) | {"OMP_NUM_THREADS": "1"}
            in_host = ["ip", "netns", "exec", self.hosts[0], *mpirun, *map(str, command)]
            return subprocess.run(in_host, env=environment).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, required=True, help="the number of hosts, 1 to 200")
    parser.add_argument("--link-gbit", type=float, default=0.0, help="rate of each link, Gbit/s (default: no limit)")
    parser.add_argument("--mpi", action="store_true", help="start the program with mpirun")
    parser.add_argument("command", nargs="+", help="the program and its arguments, after --")
    options = parser.parse_args()
    if not 1 <= options.hosts <= 200:
        parser.error(f"--hosts must be from 1 to 200, but is {options.hosts}")
    if options.link_gbit != 0 and not 0.001 <= options.link_gbit <= 1000:
        parser.error(f"--link-gbit must be from 0.001 to 1000, but is {options.link_gbit}")
    if os.geteuid() != 0:
        sys.exit("network_hosts.py: network namespaces need root; run the command with sudo")
    # Namespaces stay until they are deleted, so every end of this program passes through `finally`.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, frame: sys.exit(128 + received))
    hosts = Hosts(options.hosts, options.link_gbit)
    try:
        if options.mpi:
            sys.exit(hosts.run_with_mpi(options.command))
        processes = hosts.start(options.command)
        try:
            sys.exit(max(abs(process.wait()) for process in processes))
        finally:
            for process in processes:
                process.kill()
    finally:
        hosts.close()


if __name__ == "__main__":
    main()

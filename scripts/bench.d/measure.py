"""One run of one peer: start everything, wait for everything, count, compare."""

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass, field

from lab import A, B, wait_for_listener

SCRIPTS = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


@dataclass
class Run:
    wall: float = 0.0
    cpu: dict = field(default_factory=dict)
    """User and system seconds of all processes of a host."""
    peak: dict = field(default_factory=dict)
    """Resident bytes, the sum of what each process of a host had at most."""
    links: list = field(default_factory=list)
    """Bytes that host a sent on each link."""
    failed: str = None


class Processes:
    """All that was started and has not ended; each leads a session of its own, so that its children can be ended too."""

    def __init__(self):
        self.running = set()

    def start(self, command, stdout, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
        process = subprocess.Popen(command, stdin=stdin, stdout=stdout, stderr=stderr, start_new_session=True)
        self.running.add(process)
        return process

    def end_all(self):
        for process in self.running:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            process.wait()
        self.running.clear()


class Runner:
    def __init__(self, processes, scratch, sync):
        self.processes, self.scratch, self.sync = processes, scratch, sync
        self.errors = os.path.join(scratch, "errors")

    def run(self, job, peer, seconds):
        """At most so many seconds."""
        run = Run()
        if self.sync:
            # What earlier runs left dirty is not this one's.
            subprocess.run(["sync", "-f", job.dest], check=True)
        plan = peer.plan(job)
        before = job.lab.sent()
        links = job.lab.links
        job.lab.set_rates(links.rates)
        fall = None
        if links.falls:
            after = links.half_way(job.made.bytes, job.lab.mtu)
            fall = threading.Timer(after, job.lab.set_rates, [links.rates_later()])
        try:
            told = self.transfer(job, plan, run, time.monotonic() + seconds, fall)
        except (TimeoutError, subprocess.TimeoutExpired) as error:
            told, run.failed = [], str(error) if isinstance(error, TimeoutError) else f"not done after {seconds:.0f} s"
        finally:
            if fall:
                fall.cancel()
                if fall.is_alive():
                    fall.join()
            self.processes.end_all()
        if run.failed:
            with open(self.errors, "rb") as errors:
                said = errors.read().decode(errors="replace").strip().splitlines()
            run.failed = "; ".join([run.failed, *said[-3:]])
        run.links = [after - b for after, b in zip(job.lab.sent(), before)]
        for host in (A, B):
            mine = [usage for where, usage in told if where == host]
            run.cpu[host] = sum(cpu for cpu, _ in mine)
            run.peak[host] = sum(peak for _, peak in mine)
        run.failed = run.failed or compare(job, plan, self.scratch)
        return run

    def transfer(self, job, plan, run, deadline, fall):
        """Start both hosts' pipelines and wait; what each process used. `fall` is started with the senders."""
        started = []
        with open(self.errors, "wb") as errors, open(plan.stdin, "rb") as stdin, \
                open(plan.stdout, "wb") as stdout:
            begin = time.monotonic()
            for pipeline, port in zip(plan.recv, plan.ports):
                stages = self.pipeline(job, B, pipeline, subprocess.DEVNULL, stdout, errors)
                started += stages
                wait_for_listener(job.lab, stages[0][1], port)
            if fall:
                fall.start()
            for pipeline in plan.send:
                started += self.pipeline(job, A, pipeline, stdin, subprocess.DEVNULL, errors)
            daemons = started[:len(plan.recv)] if plan.is_daemon else []
            for stage in started:
                if stage not in daemons:
                    stage[1].wait(max(0.1, deadline - time.monotonic()))
            for stage in daemons:
                wait_for_idle(stage[1], deadline)
            if self.sync:
                subprocess.run(["sync", "-f", job.dest], check=True)
            run.wall = time.monotonic() - begin
            for stage in daemons:
                # Not timed: rsync takes 0.4 s to die of a signal.
                end_daemon(stage[1], deadline)
            codes = [(command[0], process.wait()) for _, process, command, _ in started]
            # A daemon ends by a signal.
            wrong = [f"{name} ended with {code}" for name, code in codes[len(daemons):] if code]
            run.failed = "; ".join(wrong) or None
        return [(host, usage(file)) for host, _, _, file in started]

    def pipeline(self, job, host, commands, stdin, stdout, errors):
        """Start commands that feed each other; (host, process, command, file of its usage) for each."""
        stages = []
        for i, command in enumerate(commands):
            file = os.path.join(self.scratch, f"usage-{host}{len(os.listdir(self.scratch))}-{i}")
            open(file, "w").close()
            last = i == len(commands) - 1
            # A small process of its own to fork from: a child's peak begins with its parent's size.
            timed = ["time", "--quiet", "--output", file, "--format", "%U %S %M", *command]
            process = self.processes.start(job.lab.on(host, timed), stdout if last else subprocess.PIPE, stdin, errors)
            if i:
                stdin.close()
            stdin = process.stdout
            stages.append((host, process, command, file))
        return stages


def usage(file):
    """CPU seconds and peak bytes, as GNU time wrote them."""
    with open(file) as f:
        words = f.read().split()
    os.unlink(file)
    if len(words) < 3:
        return 0.0, 0
    user, system, peak = words[-3:]
    return float(user) + float(system), int(peak) * 1024


def children(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as f:
            return [int(child) for child in f.read().split()]
    except OSError:
        return []


def wait_for_idle(process, deadline):
    """Until the daemon that `time` runs as `process` has no connection's process any more."""
    (daemon,) = children(process.pid)
    while children(daemon):
        if time.monotonic() > deadline:
            raise TimeoutError("the daemon does not end its work")
        time.sleep(0.001)


def end_daemon(process, deadline):
    """Only the daemon itself: `time` then writes what it and its children used."""
    for daemon in children(process.pid):
        os.kill(daemon, signal.SIGTERM)
    process.wait(max(1, deadline - time.monotonic()))


def compare(job, plan, scratch):
    """What is wrong with the result, or None."""
    if plan.check == "stream":
        if job.dest == os.devnull:
            return None
        command = ["cmp", job.made.file, job.dest]
    elif plan.check == "pieces":
        pieces = sorted(os.path.join(job.dest, name) for name in os.listdir(job.dest))
        command = ["bash", "-c", 'file=$1; shift; cat "$@" | cmp - "$file"', "cmp", job.made.file, *pieces]
    else:
        seconds = ["--seconds"] if plan.check == "seconds" else []
        command = [os.path.join(SCRIPTS, "treecmp"), *seconds, job.made.tree, job.dest]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "TMPDIR": scratch})
    if done.returncode == 0:
        return None
    return "differs: " + "; ".join(done.stdout.decode(errors="replace").splitlines()[:3])

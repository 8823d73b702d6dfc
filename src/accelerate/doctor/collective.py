"""Two processes on this machine exchange data: how long a number takes, and how much goes through in a second."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

from accelerate.base.environ import current
from accelerate.base.ports import get_free_port
from accelerate.doctor.finding import Finding, Visit, failure, ok

#: Seconds after which two processes that don't end are given up.
LIMIT = 60
#: What each of the processes runs; it needs torch alone.
PROBE = """
import json, time, torch, torch.distributed as dist

dist.init_process_group("gloo")
small, large = torch.ones(1), torch.ones(4 * 1024**2)
dist.barrier()

def seconds(tensor, times):
    began = time.perf_counter()
    for _ in range(times):
        dist.all_reduce(tensor)
    return (time.perf_counter() - began) / times

latency, bulk = seconds(small, 100), seconds(large, 3)
if dist.get_rank() == 0:
    print(json.dumps({"latency": latency, "bandwidth": large.nbytes / bulk}), flush=True)
dist.destroy_process_group()
"""


def two_processes(visit: Visit) -> Iterator[Finding]:
    """Yield how well two processes talk through gloo, the backend of the CPU."""
    del visit
    common = {**current(), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(get_free_port())}
    common.update(OMP_NUM_THREADS="1", LOCAL_WORLD_SIZE="2")
    told: list[tuple[str, str]] = []
    with ExitStack() as ending:
        started = [ending.enter_context(_start({**common, "RANK": rank, "LOCAL_RANK": rank})) for rank in "01"]
        try:
            told += [process.communicate(timeout=LIMIT) for process in started]
        except subprocess.TimeoutExpired:
            for process in started:
                process.kill()
    if not told:
        yield failure(
            f"two processes didn't finish an exchange within {LIMIT} s",
            "see whether a firewall blocks connections of this machine with itself; GLOO_SOCKET_IFNAME=lo may help",
        )
        return
    bad = [error for process, (_, error) in zip(started, told, strict=True) if process.returncode]
    if bad:
        last = bad[0].strip().splitlines()[-1] if bad[0].strip() else "without a word"
        yield failure(f"two processes can't exchange data: {last}", "`python -c 'import torch'` has to work first")
        return
    facts = json.loads(told[0][0].strip().splitlines()[-1])
    yield ok(
        f"two processes through gloo: {facts['latency'] * 1e6:.0f} us for a number, "
        f"{facts['bandwidth'] / 1e9:.2f} GB/s for 16 MB"
    )


def _start(environ: Mapping[str, str]) -> subprocess.Popen[str]:
    """Start one of the processes."""
    return subprocess.Popen(
        [sys.executable, "-c", PROBE], env=dict(environ), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )

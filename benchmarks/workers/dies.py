"""A script whose rank 1 is killed at a time that it writes to a file; the others would go on for a minute."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
if dist.get_rank() == 1:
    Path(sys.argv[1]).write_text(repr(time.time()), encoding="utf-8")
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(60)

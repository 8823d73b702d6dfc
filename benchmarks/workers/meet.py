"""A script whose processes find each other, meet once and leave: the least that a distributed script does."""

from __future__ import annotations

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()

"""What a run sees whose disk is full, printed as JSON: to be started on a small disk of its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.faults.test_disk import build, refusal_of_saving, tree


def fill(path: Path, room: int) -> None:
    """Write a file that leaves about `room` bytes of the disk."""
    with path.open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError:
            file.truncate(max(0, file.tell() - room))


def save_on_a_full_disk(disk: Path, room: int, blocking: bool) -> dict[str, object]:
    """Save once, once more when only `room` bytes are left, and again when there is room; say what was seen."""
    folder = disk / "project"
    accelerator, model = build(str(folder), limit=1)
    accelerator.save_state()
    before, weights = tree(folder), model.weight.detach().clone()
    fill(disk / "filler", room)
    said = refusal_of_saving(accelerator, blocking)
    same = tree(folder) == before
    model.weight.data.zero_()
    accelerator.load_state()
    loads = bool((model.weight == weights).all())
    (disk / "filler").unlink()
    accelerator.save_state()
    names = sorted(path.name for path in (folder / "checkpoints").iterdir())
    return {"said": said, "same": same, "loads": loads, "names": names}


if __name__ == "__main__":
    print(json.dumps(save_on_a_full_disk(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "blocking")))

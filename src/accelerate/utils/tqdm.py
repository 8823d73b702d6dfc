"""Progress bars that appear once per machine, not once per process."""

from __future__ import annotations

from typing import Any

from accelerate.base.messages import message, warn_once
from accelerate.state import PartialState


def tqdm(*args: Any, main_process_only: bool = True, **kwargs: Any) -> Any:
    """Return a `tqdm.auto.tqdm` bar, shown by the first process of every machine.

    Args:
        args, kwargs: those of `tqdm.auto.tqdm`; `disable=True` hides the bar everywhere.
        main_process_only: hide the bar on all but the first process of a machine.

    Raises:
        ImportError: tqdm isn't installed.
    """
    if args and isinstance(args[0], bool):
        main_process_only, *args = args  # type: ignore[assignment]
        warn_once(
            "A boolean as the first argument of accelerate's tqdm is an old spelling and will be refused one day; "
            f"write tqdm(..., main_process_only={main_process_only}) instead.",
            FutureWarning,
        )
    try:
        from tqdm.auto import tqdm as bar
    except ImportError as error:
        raise ImportError(
            message(
                given="accelerate.utils.tqdm",
                why="the package tqdm isn't installed",
                allowed="progress bars where tqdm can be imported",
                do="pip install 'accelerate[progress]', or pip install tqdm",
            )
        ) from error
    if main_process_only and not PartialState().is_local_main_process:
        kwargs["disable"] = True
    return bar(*args, **kwargs)

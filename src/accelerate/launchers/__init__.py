"""How the processes of a run are started: settings become a plan, a value, and a launcher carries it out.

`settings` merges flags and config file, `checks` refuses what can't run, `registry` chooses a launcher, one file
per launcher makes the plan, and `alone` and `elastic` run it. Nothing here imports torch before processes are
really started.
"""

from __future__ import annotations

from accelerate._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "accelerate.launchers.functions": ["debug_launcher", "notebook_launcher"],
        "accelerate.launchers.prepared": ["PrepareForLaunch"],
        "accelerate.utils.launch": ["test_launch"],
    },
)

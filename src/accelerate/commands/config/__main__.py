"""`python -m accelerate.commands.config`."""

from __future__ import annotations

from accelerate.commands.config import main

if __name__ == "__main__":
    main()

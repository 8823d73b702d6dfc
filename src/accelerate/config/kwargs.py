"""The base of every plugin that travels as keyword arguments to something in torch.

`to_kwargs` hands on only what differs from the defaults, so that torch's own defaults stay torch's to change.
"""

from __future__ import annotations

import copy
from typing import Any

from accelerate.base.environ import reading


class KwargsHandler:
    """A dataclass whose fields become keyword arguments."""

    def to_dict(self) -> dict[str, Any]:
        """Return every field, as a copy that can be changed freely."""
        return copy.deepcopy(self.__dict__)

    def to_kwargs(self) -> dict[str, Any]:
        """Return the fields that differ from those of a default instance made in an empty environment."""
        with reading({}):
            default = type(self)().to_dict()
        return {name: value for name, value in self.to_dict().items() if default[name] != value}

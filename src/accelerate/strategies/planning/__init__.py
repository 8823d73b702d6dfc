"""What a model and a mesh take on each rank, computed without the ranks: memory, and bytes between them.

Two computations that share nothing but the model: formulas (`plan_mesh`), which take milliseconds, and a simulation
(`simulate_mesh`), in which the code that shards real models works on the meta device in a process group of any size.
"""

from __future__ import annotations

from accelerate._lazy import lazy_exports

__getattr__, __dir__, __all__ = lazy_exports(
    __name__,
    {
        "accelerate.strategies.planning.facts": ["Subject"],
        "accelerate.strategies.planning.meshes": ["Mesh", "parse_mesh"],
        "accelerate.strategies.planning.plan": ["Plan", "plan_mesh", "plan_meshes"],
        "accelerate.strategies.planning.simulate": ["Simulated", "simulate_mesh"],
        "accelerate.strategies.planning.training": ["Training"],
    },
)

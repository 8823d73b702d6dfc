"""What a model and a mesh take on each rank, computed without the ranks: memory, and bytes between them.

Two computations that share nothing but the model: formulas (`plan`), which take milliseconds, and a simulation
(`simulate`), in which the code that shards real models works on the meta device in a process group of any size.
"""

"""What the ranks of a run say to each other.

`collectives` is the wire (one process, torch.distributed, XLA, and in `fake` a world of N ranks in one process), `tree`
knows nested data, and `operations` joins the two: gather, reduce, broadcast and pad of anything nested, packed into one
collective. `verify` compares what the ranks are about to do when debug mode is on.

No singleton is read here: every operation takes the collectives it speaks through as its first argument.
"""

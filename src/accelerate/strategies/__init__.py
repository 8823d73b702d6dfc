"""How a model is trained: one process, replicas, shards — one class per way, behind one small interface.

`base` is the interface, `bundle` the sorted arguments of one `prepare` call, `relink` keeps optimizers pointing at
their parameters, `select` chooses the strategy once, when the `Accelerator` is built.
"""

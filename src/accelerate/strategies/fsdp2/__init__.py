"""FSDP of the second generation: every parameter sharded by itself, as a DTensor, by torch's `fully_shard`."""

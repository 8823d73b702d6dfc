"""FSDP of the first generation: units whose parameters are one flat tensor, by `FullyShardedDataParallel`."""

"""Scripts that are launched on several processes to see whether a configuration works."""

"""Who started this process, which rank it has, and the process group it joins."""

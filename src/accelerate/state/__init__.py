"""What a process knows about its run: who it is, on which device, in which precision, and where its loop stands."""

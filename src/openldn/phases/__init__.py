"""One method, one file. What a phase is, `openldn.loop.Phase` says."""

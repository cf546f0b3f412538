"""Files of a run while it goes on: folder, checkpoints, journal, and their check."""

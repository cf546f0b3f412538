"""What measures speed and memory, each a script of its own.."""

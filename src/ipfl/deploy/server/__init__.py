"""The server's machine: the front, and Flower's SuperLink behind it."""

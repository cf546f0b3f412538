"""A node's machine: its SuperNode, its worker, and the sandbox around what it is sent."""

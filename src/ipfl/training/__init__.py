"""Networks, and the only training loop."""

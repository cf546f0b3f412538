"""A finished run: its figures, its models, and files made of them."""

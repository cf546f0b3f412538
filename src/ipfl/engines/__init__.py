"""Engines: what carries asks to clients and replies back."""

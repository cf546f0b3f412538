"""Tokens: accounts, bids, payments and settlement, as pure functions."""

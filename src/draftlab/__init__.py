"""Speculative decoding, reproduced: distil drafts on live traffic, verify several drafted tokens, measure both."""

__version__ = "0.1.0"

"""Experiments on several drafted tokens: exact on toy distributions and on recorded pairs, live on models, and what a decision costs."""

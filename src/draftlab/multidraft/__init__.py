"""Experiments on several drafted tokens: exact on toy laws and on recorded pairs, live on models, and what a decision costs."""

"""Measurements of speculative decoding on real engines, at a set acceptance, with a calibrated cost model."""

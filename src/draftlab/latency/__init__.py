"""Speculative decoding measured: real engines, controlled acceptance, a calibrated cost model."""

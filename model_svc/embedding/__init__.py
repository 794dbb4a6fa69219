"""Embedding models: a replica without sequences. Inputs in, one vector each out."""

"""The public dialects: what clients send, translated into wire messages, and what they get back."""

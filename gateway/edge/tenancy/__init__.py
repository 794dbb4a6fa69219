"""Who calls, and how much they may: API keys from a file, their limits shared over all edges."""

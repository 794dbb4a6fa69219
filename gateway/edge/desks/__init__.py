"""What the edge asks other desks: conversations, token ids, vectors."""

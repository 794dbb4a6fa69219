"""Safety rules at work in the edge: prompts screened, answers gated and judged, hits audited."""

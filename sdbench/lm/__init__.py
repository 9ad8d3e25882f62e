"""The only room that knows transformers: a causal model over a ragged cache, with its own attention."""

"""The only package that uses transformers' models: a causal model over a ragged cache, with its own attention."""

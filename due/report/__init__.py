"""A report about a model, as one page that needs no network, and a model card."""

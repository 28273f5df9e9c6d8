"""What the paper's artefacts, the comparison and the demo share: journals, trials, statistics."""

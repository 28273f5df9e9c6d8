"""What the paper's artefacts and the comparison share: journals, trials, statistics."""

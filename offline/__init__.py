"""Turns cells into a bundle, one file a stage: dataset → train → evaluate → export → card."""

"""make bench BENCH=service: what a request costs beside plainer ways of answering it, as ratios within one run."""

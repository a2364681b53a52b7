"""Does what was learnt for one vLLM hold for another? Compared with the one that is installed; see REQUALIFY.md."""

"""Block-sparse, flex and NVFP4-QAT attention."""

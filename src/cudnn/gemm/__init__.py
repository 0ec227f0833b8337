"""`cudnn.gemm`: upstream's module paths lead through here."""

"""`cudnn.gemm.cutedsl`: upstream's module paths lead through here."""

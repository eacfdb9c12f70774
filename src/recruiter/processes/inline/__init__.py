"""Jobs in the calling process: run, run_all, watch and flush."""

"""POF-MKL: personalised online federated learning with multiple kernels (Ghari and Shen, NeurIPS 2022)."""

import torch

torch.set_num_threads(1)  # pytest -n runs one process a core

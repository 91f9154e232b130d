"""Scripts for one job each, ready to be copied: ``torchrun --standalone --nproc-per-node 2 examples/train_ddp.py``."""

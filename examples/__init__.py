"""One file a framework, each ready to be copied; run them as modules from here: ``torchrun ... -m examples.ddp``."""

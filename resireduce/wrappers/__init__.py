"""Gradients that another wrapper of the model hands over: DistributedDataParallel or FSDP2."""

"""What scripts for DeepSpeed's engine hold in their hands; see :mod:`accelerate.strategies.deepspeed.stand_ins`."""

"""What a launch can say about Megatron-LM: :class:`MegatronSettings`, a field a setting.

This version starts no runs with Megatron-LM; files and command lines that speak of it are read and checked.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from accelerate.config.option import Boolean, Choice, Integer, Kind, Number, option

GROUP = "Megatron-LM Arguments"
SIZE = Integer(1)
VALUE = Boolean(switch=False)


def setting(name: str, kind: Kind, help: str) -> Any:
    """Return a field whose flag, key and variable are made of `name`."""
    return option(
        None,
        kind=kind,
        flag=f"--megatron_lm_{name}",
        yaml=f"megatron_lm_config.megatron_lm_{name}",
        env=f"MEGATRON_LM_{name.upper()}",
        group=GROUP,
        help=help,
    )


@dataclass
class MegatronSettings:
    """Everything that the section `megatron_lm_config` of a config file can hold."""

    tp_degree: int | None = setting("tp_degree", SIZE, "Over how many processes layers are divided.")
    pp_degree: int | None = setting("pp_degree", SIZE, "How many stages a pipeline has.")
    num_micro_batches: int | None = setting("num_micro_batches", SIZE, "How many micro-batches a pipeline gets.")
    decoder_last_pipeline_num_layers: int | None = setting(
        "decoder_last_pipeline_num_layers", SIZE, "How many layers the last stage of a pipeline has."
    )
    context_parallel_size: int | None = setting(
        "context_parallel_size", SIZE, "Over how many processes sequences are divided."
    )
    expert_model_parallel_size: int | None = setting(
        "expert_model_parallel_size", SIZE, "Over how many processes experts are distributed."
    )
    expert_tensor_parallel_size: int | None = setting(
        "expert_tensor_parallel_size", SIZE, "Over how many processes each expert is divided."
    )
    sequence_parallelism: bool | None = setting(
        "sequence_parallelism", VALUE, "Divide activations between divided layers too."
    )
    recompute_activations: bool | None = setting(
        "recompute_activations", VALUE, "Compute activations again in the backward pass."
    )
    recompute_granularity: str | None = setting(
        "recompute_granularity", Choice(("full", "selective")), "Compute whole layers again, or what costs most memory."
    )
    recompute_method: str | None = setting(
        "recompute_method", Choice(("uniform", "block")), "Which layers are computed again."
    )
    recompute_num_layers: int | None = setting("recompute_num_layers", SIZE, "How many layers are computed again.")
    use_distributed_optimizer: bool | None = setting(
        "use_distributed_optimizer", VALUE, "Divide optimizer states over data parallel processes."
    )
    use_precision_aware_optimizer: bool | None = setting(
        "use_precision_aware_optimizer", VALUE, "Keep optimizer states in lower precision."
    )
    optimizer_cpu_offload: bool | None = setting("optimizer_cpu_offload", VALUE, "Update weights on the CPU.")
    overlap_cpu_optimizer_d2h_h2d: bool | None = setting(
        "overlap_cpu_optimizer_d2h_h2d", VALUE, "Copy to and from that optimizer while something else is computed."
    )
    use_custom_fsdp: bool | None = setting("use_custom_fsdp", VALUE, "Use the FSDP of Megatron.")
    no_load_optim: bool | None = setting("no_load_optim", VALUE, "Load checkpoints without optimizer states.")
    no_save_optim: bool | None = setting("no_save_optim", VALUE, "Save checkpoints without optimizer states.")
    eod_mask_loss: bool | None = setting("eod_mask_loss", VALUE, "Leave ends of documents out of the loss.")
    calculate_per_token_loss: bool | None = setting(
        "calculate_per_token_loss", VALUE, "Weight losses by the number of tokens."
    )
    gradient_clipping: float | None = setting(
        "gradient_clipping", Number(0.0), "The norm to which gradients are clipped; 0 leaves them."
    )
    attention_backend: bool | None = setting("attention_backend", VALUE, "Let Megatron choose how attention is done.")
    attention_softmax_in_fp32: bool | None = setting(
        "attention_softmax_in_fp32", VALUE, "Compute the softmax of attention in fp32."
    )
    attention_dropout: float | None = setting("attention_dropout", Number(0.0), "Dropout of attention.")
    hidden_dropout: float | None = setting("hidden_dropout", Number(0.0), "Dropout of hidden layers.")
    use_rotary_position_embeddings: bool | None = setting(
        "use_rotary_position_embeddings", VALUE, "Encode positions by rotation."
    )

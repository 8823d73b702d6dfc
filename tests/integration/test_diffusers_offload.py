"""diffusers keeps the models of a pipeline on the CPU, whole or layer by layer, through this library."""

from __future__ import annotations

import pytest
import torch

from accelerate import cpu_offload_with_hook
from accelerate.hooks import AlignDevicesHook, CpuOffload

diffusers = pytest.importorskip("diffusers", reason="needs diffusers")

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


def unet():
    torch.manual_seed(0)
    return diffusers.UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        block_out_channels=(8, 8),
        layers_per_block=1,
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "UpBlock2D"),
    ).eval()


def pipeline():
    scheduler = diffusers.DDPMScheduler(num_train_timesteps=10)
    made = diffusers.DDPMPipeline(unet(), scheduler)
    made.set_progress_bar_config(disable=True)
    return made


def image(made) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.from_numpy(made(generator=generator, num_inference_steps=2, output_type="np").images)


def test_models_of_a_pipeline_are_offloaded_whole() -> None:
    wanted = image(pipeline())
    made = pipeline()
    made.enable_model_cpu_offload(device="cpu")
    assert isinstance(made.unet._hf_hook, CpuOffload)
    torch.testing.assert_close(image(made), wanted)
    torch.testing.assert_close(image(made), wanted)
    made.remove_all_hooks()
    assert not hasattr(made.unet, "_hf_hook")


def test_models_of_a_pipeline_are_offloaded_layer_by_layer() -> None:
    wanted = image(pipeline())
    made = pipeline()
    made.enable_sequential_cpu_offload(device="cpu")
    assert made.unet.conv_in.weight.is_meta
    hook = made.unet.conv_in._hf_hook
    assert isinstance(hook, AlignDevicesHook)
    assert made._execution_device == torch.device("cpu:0")
    torch.testing.assert_close(image(made), wanted)
    torch.testing.assert_close(image(made), wanted)


def test_models_in_turn() -> None:
    first, second = unet(), unet()
    inputs = (torch.randn(1, 1, 8, 8), 1)
    wanted = first(*inputs).sample
    first, before = cpu_offload_with_hook(first, "cpu")
    second, after = cpu_offload_with_hook(second, "cpu", prev_module_hook=before)
    assert after.hook.prev_module_hook is before
    torch.testing.assert_close(second(first(*inputs).sample * 0 + inputs[0], 1).sample, wanted)
    for hook in (before, after):
        hook.offload()
        hook.remove()
    assert not hasattr(first, "_hf_hook")


def test_weights_are_kept_in_a_small_dtype() -> None:
    model = unet()
    inputs = (torch.randn(1, 1, 8, 8), 1)
    with torch.no_grad():
        wanted = model(*inputs).sample
        model.enable_layerwise_casting(storage_dtype=torch.float8_e4m3fn, compute_dtype=torch.float32)
        assert model.down_blocks[0].resnets[0].conv1.weight.dtype == torch.float8_e4m3fn
        assert (model(*inputs).sample - wanted).abs().mean() < 0.2


def test_a_pretrained_model_is_placed_and_offloaded(tmp_path) -> None:
    model = unet()
    model.save_pretrained(tmp_path / "unet")
    placed = diffusers.UNet2DModel.from_pretrained(
        tmp_path / "unet", device_map={"": "disk"}, offload_folder=tmp_path / "offload"
    ).eval()
    inputs = (torch.randn(1, 1, 8, 8), 1)
    with torch.no_grad():
        torch.testing.assert_close(placed(*inputs).sample, model(*inputs).sample)

"""One row per kind of hardware, which detection, launch, checkpoints, memory budgets and `accelerate env` read.

The table imports no torch. A kind of hardware that torch knows but this table doesn't gets a generic row from
:func:`spec_for`, and works through `torch.accelerator`; a package can also contribute a row of its own under the entry
point group `accelerate.devices`.
"""

from __future__ import annotations

from dataclasses import dataclass

from accelerate.base.registry import Registry

_DEVICE = "accelerate.devices.device:Device"


@dataclass(frozen=True)
class DeviceSpec:
    """The facts about one kind of hardware.

    Args:
        name: the torch device type, such as "cuda".
        title: how a person calls it.
        label: the `DistributedType` value that a run on several of them prints.
        package: the package whose import teaches torch about it; None when torch has it built in.
        backend: the collective backend of torch.distributed; None to ask torch which one it registered.
        visible: the environment variable that restricts a process to some of the devices.
        rng_key: the name of its random state in a checkpoint; None when torch's own entry covers it.
        exclusive: whether each device serves one process only.
        multi_process: whether several processes can train together on this kind of device.
        runtime: the attribute of `torch.version` that names the toolkit which torch was built for.
        implementation: where its `Device` class is, as "module:class".
    """

    name: str
    title: str
    label: str
    package: str | None = None
    backend: str | None = None
    visible: str | None = None
    rng_key: str | None = None
    exclusive: bool = True
    multi_process: bool = True
    runtime: str | None = None
    implementation: str = _DEVICE


XLA = DeviceSpec(
    name="xla",
    title="TPU or another XLA device",
    label="XLA",
    package="torch_xla",
    backend="xla",
    rng_key="xm_seed",
    exclusive=False,  # torch_xla starts the processes, and gives each its devices
    implementation="accelerate.devices.xla:XlaDevice",
)
MPS = DeviceSpec(
    name="mps",
    title="Apple GPU (MPS)",
    label="NO",
    rng_key="torch_mps_manual_seed",
    multi_process=False,
    implementation="accelerate.devices.mps:MpsDevice",
)
MLU = DeviceSpec(
    name="mlu",
    title="Cambricon MLU",
    label="MULTI_MLU",
    package="torch_mlu",
    backend="cncl",
    visible="MLU_VISIBLE_DEVICES",
    rng_key="torch_mlu_manual_seed",
)
SDAA = DeviceSpec(
    name="sdaa",
    title="Tecorigin SDAA",
    label="MULTI_SDAA",
    package="torch_sdaa",
    backend="tccl",
    visible="SDAA_VISIBLE_DEVICES",
    rng_key="torch_sdaa_manual_seed",
)
MUSA = DeviceSpec(
    name="musa",
    title="Moore Threads MUSA",
    label="MULTI_MUSA",
    package="torch_musa",
    backend="mccl",
    visible="MUSA_VISIBLE_DEVICES",
    rng_key="torch_musa_manual_seed",
    runtime="musa",
)
NPU = DeviceSpec(
    name="npu",
    title="Ascend NPU",
    label="MULTI_NPU",
    package="torch_npu",
    backend="hccl",
    visible="ASCEND_RT_VISIBLE_DEVICES",
    rng_key="torch_npu_manual_seed",
    runtime="cann",
)
HPU = DeviceSpec(
    name="hpu",
    title="Intel Gaudi (HPU)",
    label="MULTI_HPU",
    package="habana_frameworks.torch",
    backend="hccl",
    visible="HABANA_VISIBLE_MODULES",
    rng_key="torch_hpu_manual_seed",
    implementation="accelerate.devices.hpu:HpuDevice",
)
CUDA = DeviceSpec(
    name="cuda",
    title="NVIDIA or AMD GPU (CUDA or ROCm)",
    label="MULTI_GPU",
    backend="nccl",
    visible="CUDA_VISIBLE_DEVICES",
    rng_key="torch_cuda_manual_seed",
    runtime="cuda",
    implementation="accelerate.devices.cuda:CudaDevice",
)
XPU = DeviceSpec(
    name="xpu",
    title="Intel GPU (XPU)",
    label="MULTI_XPU",
    backend="xccl",
    visible="ZE_AFFINITY_MASK",
    rng_key="torch_xpu_manual_seed",
    runtime="xpu",
)
NEURON = DeviceSpec(
    name="neuron",
    title="AWS Trainium (Neuron)",
    label="MULTI_NEURON",
    package="torch_neuronx",
    backend="neuron",
    visible="NEURON_RT_VISIBLE_CORES",
    rng_key="torch_neuron_manual_seed",
)
CPU = DeviceSpec(
    name="cpu",
    title="CPU",
    label="MULTI_CPU",
    backend="gloo",
    exclusive=False,
    implementation="accelerate.devices.cpu:CpuDevice",
)

#: In order of detection: the first kind that is present is the default device.
SPECS: tuple[DeviceSpec, ...] = (XLA, MPS, MLU, SDAA, MUSA, NPU, HPU, CUDA, XPU, NEURON, CPU)

ROWS: Registry[DeviceSpec] = Registry("devices")
for _spec in SPECS:
    ROWS.register(_spec.name, _spec)


def spec_for(name: str) -> DeviceSpec:
    """Return the row of torch device type `name`; a generic one for a type without a row."""
    return ROWS.get(name) if name in ROWS else _generic(name)


def _generic(name: str) -> DeviceSpec:
    """Return what holds for any backend that follows torch's conventions for device modules.

    Such a run shows itself as MULTI_GPU, the nearest of the published labels: several accelerators, one per process.
    """
    return DeviceSpec(
        name=name, title=f"{name} accelerator", label="MULTI_GPU", rng_key=f"torch_{name}_manual_seed", runtime=name
    )

"""Global switches of torch that change a step's numbers, taken and put back.

The captured ones hold for a replay, whatever the defaults of the machine are. What must be set before the interpreter
starts (hash seed, libraries' thread counts) travels in the environment instead; `DETERMINING` names those variables.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

DETERMINING = (
    "PYTHONHASHSEED",
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "ATEN_",
    "DNNL_",
    "ONEDNN_",
    "TORCH_",
    "PYTORCH_",
    "TORCHINDUCTOR_",
    "CUBLAS_",
    "CUDNN_",
    "CUDA_",
    "NVIDIA_TF32_OVERRIDE",
    "NCCL_",
)

_PRECISIONS = {str(dtype): dtype for dtype in (torch.bfloat16, torch.float16, torch.float32, torch.float64)}


def take() -> dict[str, Any]:
    """All switches by name, as plain data."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "default_dtype": str(torch.get_default_dtype()),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "cuda_matmul_tf32": cuda.matmul.allow_tf32,
        "cudnn_tf32": cudnn.allow_tf32,
        "cudnn_enabled": cudnn.enabled,
        "cudnn_benchmark": cudnn.benchmark,
        "cudnn_deterministic": cudnn.deterministic,
        "deterministic_algorithms": torch.are_deterministic_algorithms_enabled(),
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        "sdp_flash": cuda.flash_sdp_enabled(),
        "sdp_mem_efficient": cuda.mem_efficient_sdp_enabled(),
        "sdp_math": cuda.math_sdp_enabled(),
        "anomaly_detection": torch.is_anomaly_enabled(),
        "grad_enabled": torch.is_grad_enabled(),
        "autocast": {device: _autocast(device) for device in ("cpu", "cuda")},
        "hash_seed": os.environ.get("PYTHONHASHSEED", "random"),
    }


def put(flags: Mapping[str, Any]) -> None:
    """Set every switch but autocast, which is a context: see `entered`."""
    cuda, cudnn = torch.backends.cuda, torch.backends.cudnn
    if torch.get_num_threads() != flags["threads"]:
        torch.set_num_threads(flags["threads"])
    torch.set_default_dtype(_PRECISIONS[flags["default_dtype"]])
    torch.set_float32_matmul_precision(flags["matmul_precision"])
    cuda.matmul.allow_tf32 = flags["cuda_matmul_tf32"]
    cudnn.allow_tf32 = flags["cudnn_tf32"]
    cudnn.enabled = flags["cudnn_enabled"]
    cudnn.benchmark = flags["cudnn_benchmark"]
    cudnn.deterministic = flags["cudnn_deterministic"]
    torch.use_deterministic_algorithms(flags["deterministic_algorithms"], warn_only=flags["deterministic_warn_only"])
    cuda.enable_flash_sdp(flags["sdp_flash"])
    cuda.enable_mem_efficient_sdp(flags["sdp_mem_efficient"])
    cuda.enable_math_sdp(flags["sdp_math"])
    torch.autograd.set_detect_anomaly(flags["anomaly_detection"])


@contextmanager
def entered(flags: Mapping[str, Any]) -> Iterator[None]:
    """Autocast and grad mode as they were around the captured step."""
    with ExitStack() as stack:
        for device, autocast in flags["autocast"].items():
            if autocast["enabled"]:
                stack.enter_context(torch.autocast(device, dtype=_PRECISIONS[autocast["dtype"]]))
        stack.enter_context(torch.set_grad_enabled(flags["grad_enabled"]))
        yield


def _autocast(device: str) -> dict[str, Any]:
    return {"enabled": torch.is_autocast_enabled(device), "dtype": str(torch.get_autocast_dtype(device))}

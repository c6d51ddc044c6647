"""Fourier layers, networks and FFTs on fields that are cut over the processes of a `torch.distributed` group."""

from turbofno_ops.distributed.fft import fftn, ifftn, irfftn, rfftn
from turbofno_ops.distributed.layer import fourier_layer
from turbofno_ops.distributed.network import SlabFNO, compile_fno
from turbofno_ops.distributed.slabs import slab_rows

__all__ = [
    "SlabFNO",
    "compile_fno",
    "fftn",
    "fourier_layer",
    "ifftn",
    "irfftn",
    "rfftn",
    "slab_rows",
]

"""The list of names that a checkpoint may contain: those that torch and numpy write, and the FNO libraries' classes.

Listed names are not imported or called either. A file with any other name is refused as a whole, and the error
names it, except that the activation of a neuraloperator network may have a name that is not listed.
"""

from __future__ import annotations

import sys

_STORAGES = {
    f"{kind}Storage"
    for kind in (
        "Untyped", "Float", "Double", "Half", "BFloat16", "Long", "Int", "Short", "Char", "Byte",
        "Bool", "ComplexFloat", "ComplexDouble",
    )
}  # fmt: skip

_DTYPES = {
    "float32", "float64", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex32", "complex64", "complex128",
}  # fmt: skip

_EXACT: dict[str, set[str]] = {
    "torch": {"Size", "device", "Tensor", *_STORAGES, *_DTYPES},
    "torch.storage": {"UntypedStorage", "TypedStorage"},
    "torch._utils": {
        "_rebuild_tensor", "_rebuild_tensor_v2", "_rebuild_tensor_v3", "_rebuild_parameter",
        "_rebuild_parameter_with_state",
    },
    "torch._C._nn": {"gelu", "silu", "leaky_relu", "elu", "softplus"},
    "torch._C": {"_VariableFunctionsClass"},
    "torch._VariableFunctions": {"tanh", "sin", "cos", "erf", "relu", "celu", "selu", "sigmoid"},
    # in a DistributedDataParallel that was saved whole
    "torch.distributed.algorithms.join": {"_JoinConfig"},
    "torch.torch_version": {"TorchVersion"},
    # a script's arguments in a training state
    "argparse": {"Namespace"},
    "types": {"SimpleNamespace"},
    # a Counter is in the state of MultiStepLR
    "collections": {"OrderedDict", "defaultdict", "Counter", "deque"},
    "copyreg": {"_reconstructor"},
    "copy_reg": {"_reconstructor"},
    "functools": {"partial"},
    # in modules of PhysicsNeMo
    "logging": {"getLogger"},
    "_codecs": {"encode"},
    # in configurations of omegaconf
    "typing": {"Any"},
    "numpy": {"dtype", "ndarray", "float32", "float64", "int64", "int32", "bool_"},
}  # fmt: skip
for _module in ("builtins", "__builtin__"):
    _EXACT[_module] = {
        "set", "frozenset", "slice", "complex", "object", "dict", "list", "tuple", "int", "float",
        "str", "bool", "getattr", "Ellipsis", "bytes",
    }  # fmt: skip
# Protocol 2 has the names of Python 2 for int and str.
_EXACT["__builtin__"] |= {"long", "unicode"}
for _module in ("numpy.core.multiarray", "numpy._core.multiarray"):
    _EXACT[_module] = {"scalar", "_reconstruct"}
for _module in ("numpy.core.numeric", "numpy._core.numeric"):
    _EXACT[_module] = {"_frombuffer"}

# Python 3.13 names its own module.
for _module in ("pathlib", "pathlib._local"):
    _EXACT[_module] = {
        "Path", "PosixPath", "WindowsPath", "PurePath", "PurePosixPath", "PureWindowsPath",
    }  # fmt: skip

# Libraries whose classes and functions occur in pickled modules, metadata and training states.
_LIBRARIES = (
    "torch.nn", "torch.optim", "neuralop", "tltorch", "tensorly", "physicsnemo", "modulus",
    "pytorch_lightning", "lightning", "lightning_fabric", "omegaconf",
)  # fmt: skip

# Classes of FNO scripts, which may be in a module of any name.
_SCRIPT_CLASSES = {
    "FNO1d", "FNO2d", "FNO3d", "FNO", "Net1d", "Net2d", "Net3d", "FNN1d", "FNN2d", "FNN3d",
    "SimpleBlock1d", "SimpleBlock2d", "SimpleBlock3d", "SpectralConv1d", "SpectralConv2d",
    "SpectralConv3d", "SpectralConv1d_fast", "SpectralConv2d_fast", "SpectralConv3d_fast",
    "SpectralConv", "MLP", "UnitGaussianNormalizer", "GaussianNormalizer", "RangeNormalizer",
}  # fmt: skip


def is_allowed(module: str, name: str) -> bool:
    """True if a checkpoint may contain the name `module`.`name`."""
    if not name.isidentifier() or not module.replace(".", "_").isidentifier():
        # a dotted name would look up attributes of a listed name
        return False
    if name in _EXACT.get(module, ()):
        return True
    if any(module == library or module.startswith(library + ".") for library in _LIBRARIES):
        return True
    root = module.partition(".")[0]
    if root in sys.stdlib_module_names and root != "__main__":
        return False
    return root not in ("torch", "numpy", "nt") and name in _SCRIPT_CLASSES


def may_name_activation(module: str, name: str) -> bool:
    """True if `module`.`name` may be an activation that is not listed: of the user's own code, or a rare one of torch.

    A name of Python itself is none.
    """
    plain = name.isidentifier() and module.replace(".", "_").isidentifier()
    root = module.partition(".")[0]
    return plain and (root == "__main__" or root not in (*sys.stdlib_module_names, "nt"))

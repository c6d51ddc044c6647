"""A network of neuraloperator that was pickled whole: the arguments that its attributes stand for."""

from __future__ import annotations

from typing import Any

from turbofno.models.importers.activations import activation_of
from turbofno.models.importers.refusal import ImportRefused
from turbofno.models.importers.safe_pickle import Stub
from turbofno.models.importers.torch_file import module_attributes

_NORMS = {
    "InstanceNorm": "instance_norm",
    # of 0.3, which takes torch's
    "InstanceNorm1d": "instance_norm",
    "InstanceNorm2d": "instance_norm",
    "InstanceNorm3d": "instance_norm",
    "GroupNorm": "group_norm",
    "BatchNorm": "batch_norm",
    "AdaIN": "ada_in",
}
_EPSILON = 1e-5
_NETWORKS = ("FNO", "TFNO", *(f"{kind}FNO{n}d" for kind in ("", "T") for n in (1, 2, 3)))

# Modules around a network that pass its answer on as it is.
_TRANSPARENT = ("DataParallel", "DistributedDataParallel", "AveragedModel")

# Attributes of FNOBlocks that are arguments of FNO under the same name.
_OF_THE_BLOCKS = (
    "preactivation", "stabilizer", "fno_skip", "channel_mlp_skip", "mlp_skip", "separable", "complex_data",
    "fno_block_precision", "conv_bias_kernel", "enforce_hermitian_symmetry", "resolution_scaling_factor",
    "output_scaling_factor", "use_channel_mlp", "use_mlp",
)  # fmt: skip


def settings_of(module: Stub) -> dict[str, Any] | None:
    """The arguments of FNO.__init__ with which a pickled network would compute what it computes.

    The arguments stored in the pickle are those that the network was built with, for a TFNO only those
    that were given. The attributes say what it does now, and some of them which release it is of.

    Args:
        module: The pickled module, the network itself or one around it (DataParallel, for example).

    Returns:
        Arguments by the names of the network's release; None if there is no FNO or TFNO inside.

    Raises:
        ImportRefused: the network was changed after it was built in a way that no argument expresses, or
            something else than the library computes with it.
    """
    modules = module_attributes(module)
    networks = [
        path.removesuffix("fno_blocks").removesuffix(".")
        for path, part in modules.items()
        if part.cls.name == "FNOBlocks" and path.rpartition(".")[2] == "fno_blocks"
    ]
    if len(networks) != 1:
        return None
    root = networks[0]
    network = modules[root]
    settings = network.attributes.get("_init_kwargs")
    settings = dict(settings) if isinstance(settings, dict) else {"_name": network.cls.name}
    if settings.get("_name", "FNO") in _NETWORKS:
        _refuse_other_code(modules, root)
        settings |= _arguments_of_blocks(modules, _join(root, "fno_blocks"))
        settings |= _arguments_of_network(modules, root)
        settings |= _sizes(modules, root) | {"_whole": True}
        settings.pop("args", None)
        _refuse_other_activations(modules, root)
    return settings


def _refuse_other_code(modules: dict[str, Stub], root: str) -> None:
    """Refuse a class of the same name from elsewhere, and modules around the network that may do more."""
    cls = modules[root].cls
    if not cls.module.startswith("neuralop."):
        raise ImportRefused(
            f"the pickled network is a {cls.qualified}, not neuraloperator's {cls.name}, and may compute something "
            "else. If it computes the same, save its state dict: torch.save(model.state_dict(), path)"
        )
    path = root
    while path:
        path = path.rpartition(".")[0]
        around = modules[path].cls
        if around.name not in _TRANSPARENT or not around.module.startswith("torch."):
            raise ImportRefused(
                f"the pickled network lies inside a {around.qualified}, which may compute more than the network "
                f"alone. Save the network itself, model.{root}: torch.save(model.{root}, path)"
            )


def _arguments_of_blocks(modules: dict[str, Stub], path: str) -> dict[str, Any]:
    blocks = modules[path]
    found = {name: blocks.attributes[name] for name in _OF_THE_BLOCKS if name in blocks.attributes}
    found["non_linearity"] = _activation(blocks)
    norms = _listed(modules, _join(path, "norm"))
    found["norm"] = _norm_of(norms)
    groups = norms[0].attributes.get("num_groups") if norms else None
    if groups not in (None, 1):
        found["norm_groups"] = groups
    # 0.3 has one convolution for all layers
    convs = _listed(modules, _join(path, "convs")) or [modules[_join(path, "convs")]]
    return found | _arguments_of_convolutions(blocks, convs)


def _is_old(blocks: Stub) -> bool:
    """True if it is of release 0.3."""
    return "use_mlp" in blocks.attributes


def _norm_of(norms: list[Stub]) -> str | None:
    kinds = {norm.cls.name for norm in norms}
    if len(kinds) > 1 or len({norm.attributes.get("num_groups") for norm in norms}) > 1:
        raise ImportRefused(f"the layers have different norms: {sorted(kinds)}")
    for norm in norms:
        # a batch norm is a module inside; an instance norm keeps its arguments
        inner = (norm.attributes.get("_modules") or {}).get("norm", norm)
        options = inner.attributes.get("kwargs") or inner.attributes
        if options.get("eps", _EPSILON) != _EPSILON:
            raise ImportRefused(
                f"a norm {norm.cls.name} with eps={options['eps']} is not supported, only {_EPSILON}"
            )
    return next((_NORMS.get(kind, kind) for kind in kinds), None)


def _arguments_of_convolutions(blocks: Stub, convs: list[Stub]) -> dict[str, Any]:
    kinds = {conv.cls for conv in convs}
    modes = {tuple(conv.attributes.get("_n_modes") or ()) for conv in convs}
    if len(kinds) > 1 or len(modes) > 1:
        raise ImportRefused(
            f"the layers have different spectral convolutions: {sorted(kind.name for kind in kinds)} with "
            f"{sorted(modes)} modes; one kind and one number of modes are supported"
        )
    (kind,), (kept,) = kinds, modes
    own = kind.module.startswith("neuralop.layers.") and kind.name == "SpectralConv"
    asked = blocks.attributes.get("_n_modes")
    asked = tuple(asked) if isinstance(asked, list | tuple) else (asked,)
    if kept and kept != (*asked[:-1], asked[-1] // 2 + 1):
        # what the convolutions keep decides; the last entry counts both signs
        asked = (*kept[:-1], 2 * (kept[-1] - 1))
    return {
        "conv_module": "SpectralConv" if own else kind.qualified,
        "n_modes": asked,
        "max_n_modes": convs[0].attributes.get("max_n_modes"),
    }


def _arguments_of_network(modules: dict[str, Stub], root: str) -> dict[str, Any]:
    found: dict[str, Any] = {
        "positional_embedding": modules.get(_join(root, "positional_embedding")),
        "domain_padding": None,
    }
    padding = modules.get(_join(root, "domain_padding"))
    if padding is not None:
        found["domain_padding"] = padding.attributes.get("domain_padding")
        if "padding_mode" in padding.attributes:
            found["domain_padding_mode"] = padding.attributes["padding_mode"]
    return found


def _sizes(modules: dict[str, Stub], root: str) -> dict[str, Any]:
    """The arguments that could be given without a name."""
    names = ("in_channels", "out_channels", "hidden_channels", "n_layers")
    attributes = modules[root].attributes
    return {name: attributes[name] for name in names if name in attributes}


def _refuse_other_activations(modules: dict[str, Stub], root: str) -> None:
    """Refuse a part with another activation than FNO.__init__ gives it."""
    blocks = modules[_join(root, "fno_blocks")]
    network = activation_of(_activation(blocks), "non_linearity")
    expected = {"lifting": "gelu" if _is_old(blocks) else network, "projection": network}
    for path in ("channel_mlp", "mlp"):
        for i, _ in enumerate(_listed(modules, _join(root, f"fno_blocks.{path}"))):
            expected[f"fno_blocks.{path}.{i}"] = "gelu"
    for path, usual in expected.items():
        part = modules.get(_join(root, path))
        has = usual if part is None else activation_of(_activation(part), f"{path}.non_linearity")
        if has != usual:
            raise ImportRefused(
                f"{path} has the activation {has}, and FNO.__init__ gives it {usual}: the network was changed "
                "after it was built, which is not supported for activations"
            )


def _activation(part: Stub) -> Any:
    """Its non_linearity: a function, which is an attribute, or a module inside it."""
    inside = part.attributes.get("_modules") or {}
    return inside.get("non_linearity", part.attributes.get("non_linearity"))


def _listed(modules: dict[str, Stub], path: str) -> list[Stub]:
    """The modules of the list `path`; empty if there is none."""
    found: list[Stub] = []
    while _join(path, str(len(found))) in modules:
        found.append(modules[_join(path, str(len(found)))])
    return found


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

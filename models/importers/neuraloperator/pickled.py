"""Constructor arguments of a pickled neuraloperator network, from its attributes."""

from __future__ import annotations

from typing import Any

from turbofno.models.importers.activations import activation_of
from turbofno.models.importers.refusal import SAVE_TENSORS, ImportRefused
from turbofno.models.importers.safe_pickle import Stub
from turbofno.models.importers.torch_file import submodules

_NORMS = {
    "InstanceNorm": "instance_norm",
    # torch's names, in 0.3
    "InstanceNorm1d": "instance_norm",
    "InstanceNorm2d": "instance_norm",
    "InstanceNorm3d": "instance_norm",
    "GroupNorm": "group_norm",
    "BatchNorm": "batch_norm",
    "AdaIN": "ada_in",
}
_EPSILON = 1e-5
_NETWORKS = ("FNO", "TFNO", *(f"{kind}FNO{n}d" for kind in ("", "T") for n in (1, 2, 3)))

# Wrappers that return the network's result unchanged.
_TRANSPARENT = ("DataParallel", "DistributedDataParallel", "AveragedModel")

# Attributes of FNOBlocks with the names of FNO's arguments.
_OF_THE_BLOCKS = (
    "preactivation", "stabilizer", "fno_skip", "channel_mlp_skip", "mlp_skip", "separable", "complex_data",
    "fno_block_precision", "conv_bias_kernel", "enforce_hermitian_symmetry", "resolution_scaling_factor",
    "output_scaling_factor", "use_channel_mlp", "use_mlp",
)  # fmt: skip


def settings_of(module: Stub) -> dict[str, Any] | None:
    """The arguments of FNO.__init__ that give a network with the same results as the pickled one.

    The arguments in the pickle are those at construction; for a TFNO, those without defaults. The attributes show
    the present state of the network, and some show its release.

    Args:
        module: The pickled network, or a wrapper such as DataParallel.

    Returns:
        Arguments under their names in the network's release; None if there is no FNO or TFNO inside.

    Raises:
        ImportRefused: a network that was changed after construction in a way that no argument expresses, or one
            with code of its own.
    """
    modules = submodules(module)
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
        _refuse_other_layers(modules, root)
    return settings


def _refuse_other_code(modules: dict[str, Stub], root: str) -> None:
    """Refuse a class of another library, and wrappers that may change the result."""
    cls = modules[root].cls
    if not cls.module.startswith("neuralop."):
        raise ImportRefused(
            f"the pickled network is a {cls.qualified}, not neuraloperator's {cls.name}, and may give other results. "
            f"If it gives the same, save its tensors only: {SAVE_TENSORS}"
        )
    path = root
    while path:
        path = path.rpartition(".")[0]
        around = modules[path].cls
        if around.name not in _TRANSPARENT or not around.module.startswith("torch."):
            raise ImportRefused(
                f"the pickled network is inside a {around.qualified}, which may change its result. Save the network "
                f'itself: torch.save(model.get_submodule("{root}"), path)'
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
    # in 0.3, one module has the convolutions of all layers
    convs = _listed(modules, _join(path, "convs")) or [modules[_join(path, "convs")]]
    return found | _arguments_of_convolutions(blocks, convs)


def _is_old(blocks: Stub) -> bool:
    """True for release 0.3."""
    return "use_mlp" in blocks.attributes


def _norm_of(norms: list[Stub]) -> str | None:
    kinds = {norm.cls.name for norm in norms}
    if len(kinds) > 1 or len({norm.attributes.get("num_groups") for norm in norms}) > 1:
        raise ImportRefused(f"the layers have different norms: {sorted(kinds)}")
    for norm in norms:
        # a batch norm has an inner module; an instance norm stores its arguments
        inner = (norm.attributes.get("_modules") or {}).get("norm", norm)
        options = inner.attributes.get("kwargs") or inner.attributes
        if options.get("eps", _EPSILON) != _EPSILON:
            raise ImportRefused(
                f"the norm {norm.cls.name} has eps={options['eps']}; only {_EPSILON} is supported"
            )
    return next((_NORMS.get(kind, kind) for kind in kinds), None)


def _arguments_of_convolutions(blocks: Stub, convs: list[Stub]) -> dict[str, Any]:
    kinds = {conv.cls for conv in convs}
    modes = {tuple(conv.attributes.get("_n_modes") or ()) for conv in convs}
    if len(kinds) > 1 or len(modes) > 1:
        raise ImportRefused(
            f"the layers have different spectral convolutions: {sorted(kind.name for kind in kinds)} with "
            f"{sorted(modes)} modes; all layers must have the same"
        )
    (kind,), (kept,) = kinds, modes
    asked = blocks.attributes.get("_n_modes")
    asked = tuple(asked) if isinstance(asked, list | tuple) else (asked,)
    if kept and kept != (*asked[:-1], asked[-1] // 2 + 1):
        # The modes of the convolutions count. The last entry of n_modes counts both signs.
        asked = (*kept[:-1], 2 * (kept[-1] - 1))
    return {
        "conv_module": kind.qualified,
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
    """The arguments that may have been positional."""
    names = ("in_channels", "out_channels", "hidden_channels", "n_layers")
    attributes = modules[root].attributes
    return {name: attributes[name] for name in names if name in attributes}


def _refuse_other_activations(modules: dict[str, Stub], root: str) -> None:
    """Refuse a part whose activation is not the one that FNO.__init__ sets."""
    blocks = modules[_join(root, "fno_blocks")]
    network = _activation(blocks)
    expected = {"lifting": "gelu" if _is_old(blocks) else network, "projection": network}
    for path in ("channel_mlp", "mlp"):
        for i, _ in enumerate(_listed(modules, _join(root, f"fno_blocks.{path}"))):
            expected[f"fno_blocks.{path}.{i}"] = "gelu"
    for path, value in expected.items():
        part = modules.get(_join(root, path))
        if part is None or _activation(part) == value:
            # an activation that is not supported is refused later, unless a setting replaces it
            continue
        has = activation_of(_activation(part), f"{path}.non_linearity")
        usual = activation_of(value, "non_linearity")
        if has != usual:
            raise ImportRefused(
                f"{path} has the activation {has}, but FNO.__init__ sets {usual}: activations that were changed after "
                "construction are not supported"
            )


def _refuse_other_layers(modules: dict[str, Stub], root: str) -> None:
    """Refuse layers that are left out, or that scale in another way than the network's arguments say."""
    path = _join(root, "fno_blocks")
    blocks = modules[path].attributes
    convs = _listed(modules, _join(path, "convs"))
    # in 0.3, one module has the convolutions of all layers
    counts = {modules[root].attributes.get("n_layers"), blocks.get("n_layers"), len(convs) or None}
    numbers = sorted(n for n in counts if isinstance(n, int))
    if len(numbers) > 1:
        raise ImportRefused(
            f"the network has {numbers[-1]} Fourier layers, but n_layers={numbers[0]}: layers that were left out after "
            "construction are not supported. Build a network with fewer layers and load the tensors of those"
        )
    if blocks.get("use_channel_mlp") is False and _listed(modules, _join(path, "channel_mlp")):
        raise ImportRefused(
            "use_channel_mlp=False, but the network has channel MLPs: they were switched off after construction, which "
            "is not supported. Build the network with use_channel_mlp=False and load the other tensors"
        )
    scaling = blocks.get("resolution_scaling_factor")
    for i, conv in enumerate(convs):
        own = conv.attributes.get("resolution_scaling_factor")
        norm = conv.attributes.get("fft_norm", "forward")
        if own != (None if scaling is None else scaling[i]):
            raise ImportRefused(
                f"fno_blocks.convs.{i} has resolution_scaling_factor={own}, the network {scaling}: factors that were "
                "changed after construction are not supported"
            )
        if own is not None and norm != "forward":
            raise ImportRefused(
                f"fno_blocks.convs.{i} has fft_norm={norm}; with resolution scaling, only 'forward' is supported"
            )


def _activation(part: Stub) -> Any:
    """The non_linearity of a part: an attribute, if it is a function, or a submodule."""
    inside = part.attributes.get("_modules") or {}
    return inside.get("non_linearity", part.attributes.get("non_linearity"))


def _listed(modules: dict[str, Stub], path: str) -> list[Stub]:
    """The modules of the module list `path`; empty without one."""
    found: list[Stub] = []
    while _join(path, str(len(found))) in modules:
        found.append(modules[_join(path, str(len(found)))])
    return found


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name

"""Conversion of the tensors and arguments of neuraloperator's FNO and TFNO to our architecture and state dict."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from turbofno.models.core.architecture import (
    ChannelMLP,
    FNOArchitecture,
    ModePlacement,
    Norm,
    Skip,
)
from turbofno.models.importers.activations import activation_of
from turbofno.models.importers.layout import Tensors, as_real, corner_count
from turbofno.models.importers.neuraloperator.arguments import (
    block_steps,
    counts,
    grid_ranges,
    padding_of,
    scaling_of,
)
from turbofno.models.importers.neuraloperator.settings import Settings
from turbofno.models.importers.neuraloperator.spectral_weights import (
    StoredWeight,
    fft_order,
    refuse_giant,
    stored_weight,
)
from turbofno.models.importers.refusal import ImportRefused

_PARTS = (
    "lifting, projection, and in fno_blocks: convs, fno_skips, channel_mlp (mlp), channel_mlp_skips "
    "(mlp_skips), norm"
)

_SKIPS: dict[Any, Skip] = {
    "linear": "linear",
    "soft-gating": "soft-gating",
    "identity": "identity",
    None: "none",
}


class Network:
    """Converts a network part by part into `state` and `architecture`."""

    def __init__(self, tensors: Tensors, settings: Settings, numbers: torch.dtype) -> None:
        """`numbers` is the dtype of the spectral weights in `state`."""
        self.state: dict[str, torch.Tensor] = {}
        self._numbers = numbers
        self._tensors = tensors
        self._settings = settings
        self._old = settings.release == "0.3.0"
        self._mlp_name = "mlp" if self._old else "channel_mlp"
        _refuse_unsupported(tensors, settings)
        biases = self._spectral_biases()
        self._n_layers, self._width, self._n_dim = len(biases), len(biases[0]), biases[0].ndim - 1
        if not 1 <= self._n_dim <= 3:
            raise ImportRefused(f"the network has {self._n_dim} dimensions; 1 to 3 are supported")
        for i, bias in enumerate(biases):
            self.state[f"blocks.{i}.spectral_bias"] = bias.flatten()
        self.architecture = self._read()

    def _read(self) -> FNOArchitecture:
        get = self._settings.get
        scaling = scaling_of(get("resolution_scaling_factor"), self._n_layers, self._n_dim)
        modes, placement = self._spectral_weights()
        if self._settings.release == "main" and any(layer[-1] > 1 for layer in scaling):
            modes, placement = self._with_room_above(modes, placement)
        lifting = self._pointwise("lifting", "lifting")
        projection = self._pointwise("projection", "projection")
        activation = activation_of(get("non_linearity"), "non_linearity")
        skip = self._skip("fno_skip", "fno_skips", "skip")
        mlp = self._channel_mlp()
        norm = self._norms()
        self._tensors.finish("neuraloperator", _PARTS)
        positional = self._positional_grid(lifting[0])
        padding, built = get("domain_padding"), bool(get("_whole"))
        if isinstance(padding, tuple) and not built:
            self._settings.assumptions.append(
                f"there is no domain padding, because neuraloperator ignores a tuple: domain_padding={padding}"
            )
        if scaling and self._old:
            raise ImportRefused(
                "output_scaling_factor is not supported for 0.3 (there the field's amplitude changes with the number "
                "of points)"
            )
        block, last_block = block_steps(
            self._settings.release,
            preactivation=bool(get("preactivation")),
            tanh=get("stabilizer") == "tanh",
            norm=norm != "none",
            skip=skip != "none",
            mlp=mlp is not None,
            mlp_skip=mlp is not None and mlp.skip != "none",
        )
        arch = FNOArchitecture(
            in_channels=lifting[0] - (self._n_dim if positional else 0),
            out_channels=projection[-1],
            hidden_channels=self._width,
            n_layers=self._n_layers,
            modes=modes,
            activation=activation,
            lifting_channels=lifting[1:-1],
            projection_channels=projection[1:-1],
            # the lifting of 0.3 always uses gelu
            lifting_activation="gelu" if self._old and activation != "gelu" else None,
            skip=skip,
            skip_bias="blocks.0.skip.bias" in self.state,
            spectral_bias=True,
            channel_mlp=mlp,
            norm=norm,
            norm_groups=get("norm_groups") if norm == "group_norm" else 1,
            positional_grid="endpoint_excluded" if positional else "none",
            domain_padding=padding_of(
                padding,
                get("domain_padding_mode"),
                self._n_dim,
                scaled=bool(scaling),
                built=built,
            ),
            mode_placement=placement,
            odd_axes_rolled=self._n_dim > 1 and self._settings.release != "main",
            resolution_scaling=scaling,
            block=block,
            last_block=last_block,
        )
        if not built:
            self._refuse_other_sizes(arch)
        return _without_default_steps(arch)

    def _refuse_other_sizes(self, arch: FNOArchitecture) -> None:
        """Refuse arguments of another network: those that the tensors do not show would be wrong, too."""
        for name in ("hidden_channels", "n_layers", "out_channels"):
            named, size = self._settings.metadata.get(name), getattr(arch, name)
            if named not in (None, size):
                raise ImportRefused(
                    f"the file's arguments have {name}={named}, but its tensors {size}: they are of different networks. "
                    "Save both again, network.save_checkpoint(folder, name); if a part of the network was replaced, save "
                    "it whole: torch.save(network, path)"
                )

    def _spectral_biases(self) -> list[torch.Tensor]:
        if self._old:
            return list(self._tensors.take("fno_blocks.convs.bias"))
        n_layers = self._tensors.count_below("fno_blocks.convs.")
        if n_layers == 0:
            raise ImportRefused("the checkpoint has no spectral weights (fno_blocks.convs)")
        return [self._tensors.take(f"fno_blocks.convs.{i}.bias") for i in range(n_layers)]

    def _spectral_weights(self) -> tuple[tuple[int, ...], ModePlacement]:
        """Convert the spectral weights of all layers; return the number of kept modes and their placement."""
        weights = self._stored_weights()
        joint = self._old and len(weights) == 1 and weights[0].shape[0] == self._n_layers
        joint = joint and len(weights[0].shape) == self._n_dim + 3
        for weight in weights:
            self._check_channels(weight.shape[int(joint) : -self._n_dim], weight)
        stored = weights[0].shape[-self._n_dim :]
        asked = counts(self._settings.get("n_modes"), "n_modes", self._n_dim)
        kept = list(stored)
        if asked is not None:
            # the last entry of n_modes counts both signs
            kept = [*asked[:-1], asked[-1] // 2 + 1]
        if any(k > s for k, s in zip(kept, stored, strict=True)):
            raise ImportRefused(
                f"n_modes={list(asked or ())} exceeds the stored weights, which have {list(stored)} modes"
            )
        if not self._settings.get("_whole") and self._settings.options.given.get("n_modes") is None:
            self._settings.assumptions.append(
                f"the network uses {kept} of its {list(stored)} stored modes, as it was built; the file does not show "
                "whether n_modes was changed later (n_modes=..,..)"
            )
        weights = [weight.window(kept) for weight in weights]
        times = self._width if self._settings.get("separable") else 1
        refuse_giant(weights, self._n_layers, times)
        if joint:
            weights = [weights[0].narrow(0, i, 1) for i in range(self._n_layers)]
        for i, weight in enumerate(weights):
            dense = fft_order(weight, self._n_dim, self._width, self._numbers)
            self.state[f"blocks.{i}.spectral_weight"] = dense
        return tuple(kept), self._placement(stored[:-1], kept[:-1])

    def _with_room_above(
        self, modes: tuple[int, ...], placement: ModePlacement
    ) -> tuple[tuple[int, ...], ModePlacement]:
        """Add a zero mode on the last axis, so that grids whose Nyquist frequency is kept are refused.

        On a finer output grid, main treats that frequency as if it were still the Nyquist frequency.
        """
        if not self._settings.get("enforce_hermitian_symmetry"):
            return modes, placement
        for i in range(self._n_layers):
            name = f"blocks.{i}.spectral_weight"
            self.state[name] = torch.nn.functional.pad(self.state[name], (0, 1))
        self._settings.assumptions.append(
            "grids that are too small for the modes are refused, because main discards imaginary parts there "
            "(enforce_hermitian_symmetry)"
        )
        return (*modes[:-1], modes[-1] + 1), "exact"

    def _check_channels(self, channels: Sequence[int], weight: StoredWeight) -> None:
        shape = f"{weight.where} has shape {list(weight.shape)}"
        if len(channels) not in (1, 2) or set(channels) != {self._width}:
            raise ImportRefused(
                f"the spectral weight {shape}, expected {self._width} x {self._width} channels (one if "
                f"separable) and {self._n_dim} mode axes"
            )
        if len(channels) == 1 and not self._settings.get("separable"):
            other = "in a spherical network (not supported)"
            if weight.paired:
                other = "after module.to(dtype), which discards imaginary parts (save the network before such a cast),"
            raise ImportRefused(
                f"the spectral weight {shape}, as {other} or in a separable FNO; for a separable FNO use "
                "--set separable=true"
            )
        if len(channels) == 1 and self._old:
            raise ImportRefused(
                "separable is not supported for 0.3: that release cannot run it either"
            )

    def _placement(self, stored: Sequence[int], kept: Sequence[int]) -> ModePlacement:
        """The library's mode placement; it depends on the stored weight and the grid together."""
        centred = self._settings.release in ("2.0.0", "main")
        if all((s - k) % 2 == 0 for s, k in zip(stored, kept, strict=True)):
            return "centred" if centred else "floor_window"
        # With an odd number of unused modes, the kept rows do not determine those of a small grid.
        if centred or all(k % 2 == 0 for k in kept):
            return "exact"
        raise ImportRefused(
            f"{list(kept)} of {list(stored)} stored modes are used: odd n_modes with an odd number of unused modes are "
            f"not supported for {self._settings.release}"
        )

    def _stored_weights(self) -> list[StoredWeight]:
        layers = [f"weight.{i}" if self._old else f"{i}.weight" for i in range(self._n_layers)]
        corners = self._n_layers * corner_count(self._n_dim)
        if (
            self._old
            and self._tensors.count_below("fno_blocks.convs.weight.") == corners != self._n_layers
        ):
            raise ImportRefused(
                f"fno_blocks.convs.weight has {corners} tensors for {self._n_layers} layers, one for each corner of the "
                "spectrum, as in releases of neuraloperator before 0.3.0, which are not supported"
            )
        if self._old and not self._tensors.has_below("fno_blocks.convs.weight.0."):
            # joint_factorization: one tensor for all layers
            layers = ["weight"]
        names = [f"fno_blocks.convs.{layer}" for layer in layers]
        return [stored_weight(self._tensors.take_below(f"{name}."), name) for name in names]

    def _pointwise(self, theirs: str, here: str) -> tuple[int, ...]:
        """Convert a chain of 1x1 convolutions; return its channel counts."""
        widths: list[int] = []
        for j in range(self._tensors.count_below(f"{theirs}.fcs.")):
            weight, bias = self._tensors.take_linear(f"{theirs}.fcs.{j}")
            if widths and widths[-1] != weight.shape[1]:
                raise ImportRefused(
                    f"{theirs}.fcs.{j} has {weight.shape[1]} input channels, expected {widths[-1]}"
                )
            widths = [*(widths or [weight.shape[1]]), weight.shape[0]]
            self.state[f"{here}.linears.{j}.weight"] = weight
            self.state[f"{here}.linears.{j}.bias"] = bias
        if not widths:
            raise ImportRefused(f"the checkpoint has no {theirs}")
        return tuple(widths)

    def _positional_grid(self, lifted: int) -> bool:
        """True if coordinates are appended; fold ranges other than 0 to 1 into the lifting."""
        ranges = grid_ranges(self._settings.get("positional_embedding"), self._n_dim)
        in_channels = self._settings.get("in_channels")
        if in_channels is not None:
            if not isinstance(in_channels, int):
                raise ImportRefused(f"in_channels={in_channels} must be a whole number")
            # in 0.3 the data processor appends the coordinates, and in_channels counts them
            expected = in_channels + (self._n_dim if ranges and not self._old else 0)
            if expected != lifted:
                raise ImportRefused(
                    f"the lifting has {lifted} input channels, but in_channels={in_channels} and the positional "
                    f"embedding give {expected}"
                )
        if ranges is None:
            return False
        if lifted <= self._n_dim:
            raise ImportRefused(
                f"the lifting has {lifted} input channels, too few for a positional embedding; use "
                "--set positional_embedding=none"
            )
        weight, bias = (self.state[f"lifting.linears.0.{name}"] for name in ("weight", "bias"))
        if any(pair != (0.0, 1.0) for pair in ranges):
            starts, ends = torch.tensor(ranges, dtype=torch.float64).T
            columns = weight[:, -self._n_dim :].double()
            data = weight[:, : -self._n_dim].double()
            self.state["lifting.linears.0.bias"] = bias + columns @ starts
            self.state["lifting.linears.0.weight"] = torch.cat([data, columns * (ends - starts)], 1)
        return True

    def _skip(self, argument: str, theirs: str, here: str) -> Skip:
        """Convert the skips of all layers; return their kind, from the tensors or else from the arguments."""
        prefix = f"fno_blocks.{theirs}."
        if not self._tensors.has_below(prefix):
            kind = self._settings.get(argument)
            if kind not in ("identity", None):
                raise ImportRefused(f"{argument}={kind}, but the checkpoint has no {prefix}0")
            return _SKIPS[kind]
        kinds = {self._skip_of_layer(prefix, here, i) for i in range(self._n_layers)}
        if len(kinds) != 1:
            raise ImportRefused(f"the layers have different skips: {sorted(kinds)}")
        kind = kinds.pop()
        asked = self._settings.options.text(argument)
        if asked is not None and _SKIPS.get(self._settings.get(argument)) != kind:
            raise ImportRefused(
                f"{argument}={asked}, but the checkpoint has {kind} skips in {prefix}0"
            )
        return kind

    def _skip_of_layer(self, prefix: str, here: str, i: int) -> Skip:
        nested = "conv." if f"{prefix}{i}.conv.weight" in self._tensors else ""
        weight = self._tensors.take(f"{prefix}{i}.{nested}weight")
        gate = weight.shape[0] == 1 and not nested
        size = self._width if gate else self._width**2
        if weight.numel() != size:
            raise ImportRefused(
                f"{prefix}{i} has shape {list(weight.shape)}; only pointwise skips are supported"
            )
        shape = (self._width,) if gate else (self._width, self._width)
        self.state[f"blocks.{i}.{here}.weight"] = weight.reshape(shape)
        if not gate and f"{prefix}{i}.{nested}bias" in self._tensors:
            self.state[f"blocks.{i}.{here}.bias"] = self._tensors.take(f"{prefix}{i}.{nested}bias")
        return "soft-gating" if gate else "linear"

    def _channel_mlp(self) -> ChannelMLP | None:
        name = self._mlp_name
        if not self._tensors.has_below(f"fno_blocks.{name}."):
            return None
        for i in range(self._n_layers):
            widths = self._pointwise(f"fno_blocks.{name}.{i}", f"blocks.{i}.mlp")
        skip = self._skip("channel_mlp_skip", f"{name}_skips", "mlp_skip")
        # always gelu: FNOBlocks does not pass the network's activation on
        return ChannelMLP(hidden_channels=widths[1], skip=skip, activation="gelu")

    def _norms(self) -> Norm:
        """Convert the norms of all layers; return their kind."""
        prefix = "fno_blocks.norm."
        if not self._tensors.has_below(prefix):
            name = self._settings.get("norm")
            if name not in (None, "instance_norm"):
                raise ImportRefused(f"norm={name}, but the checkpoint has no {prefix}0")
            return "none" if name is None else "instance_norm"
        asked = self._settings.options.text("norm")
        named = self._settings.metadata.get("norm") if asked is None else self._settings.get("norm")
        if named == "instance_norm":
            raise ImportRefused(
                f"norm=instance_norm, but the checkpoint has weights below {prefix}: instance norms with "
                "weights are not supported"
            )
        per_layer = self._tensors.count_below(prefix) // self._n_layers
        kinds = set()
        for i in range(self._n_layers):
            for j in range(per_layer):
                values = self._tensors.take_below(f"{prefix}{per_layer * i + j}.")
                kind, scale, offset = _norm_of(values, f"{prefix}{per_layer * i + j}")
                kinds.add(kind)
                name = f"blocks.{i}.{('norm', 'mlp_norm')[j]}"
                self.state[f"{name}.weight"], self.state[f"{name}.bias"] = scale, offset
        if "group_norm" in kinds and named == "batch_norm":
            raise ImportRefused(
                f"norm=batch_norm, but the checkpoint has no running statistics below {prefix}: a batch norm that "
                "takes those of each batch is not supported"
            )
        found = "batch_norm" if "affine" in kinds else "group_norm"
        if asked is not None and named != found:
            raise ImportRefused(f"norm={asked}, but the checkpoint has {found}s in {prefix}0")
        return "affine" if "affine" in kinds else "group_norm"


def _norm_of(
    values: dict[str, torch.Tensor], where: str
) -> tuple[Norm, torch.Tensor, torch.Tensor]:
    """Kind, weight and bias of a group norm, or of a batch norm with its statistics folded in."""
    values = {name.removeprefix("norm."): value for name, value in values.items()}
    values.pop("num_batches_tracked", None)
    values = {name: as_real(value, f"{where}.{name}") for name, value in values.items()}
    if set(values) == {"weight", "bias"}:
        return "group_norm", values["weight"], values["bias"]
    if set(values) != {"weight", "bias", "running_mean", "running_var"}:
        raise ImportRefused(
            f"{where} has the tensors {sorted(values)}; supported are instance, group and batch norm"
        )
    weight, bias, mean, variance = (
        values[name].double() for name in ("weight", "bias", "running_mean", "running_var")
    )
    scale = weight / torch.sqrt(variance + 1e-5)
    return "affine", scale, bias - mean * scale


def _refuse_unsupported(tensors: Tensors, settings: Settings) -> None:
    get = settings.get
    if get("complex_data") or tensors.has_below("lifting.fr."):
        raise ImportRefused(
            "complex_data=True is not supported: fields must be real (for complex ones, neuraloperator up to main keeps "
            "the highest instead of the lowest frequencies of the last axis)"
        )
    # not its default: weights may show another norm
    if settings.metadata.get("norm") == "ada_in":
        raise ImportRefused("norm=ada_in is not supported: it needs an embedding with every call")
    conv = get("conv_module")
    conv = getattr(conv, "qualified", conv)
    if conv not in ("SpectralConv", "neuralop.layers.spectral_convolution.SpectralConv"):
        raise ImportRefused(
            f"conv_module={conv} is not supported; supported is neuraloperator's own SpectralConv"
        )
    if get("conv_bias_kernel") != 1:
        raise ImportRefused("conv_bias_kernel above 1 is not supported: only pointwise skips are")
    if get("stabilizer") not in (None, "tanh"):
        raise ImportRefused(
            f"stabilizer={get('stabilizer')} is not supported; supported are tanh and None"
        )
    if get("fno_block_precision") != "full":
        settings.assumptions.append(
            f"fno_block_precision={get('fno_block_precision')} is ignored: layers use full precision, or on GPUs that of "
            "--precision"
        )


def _without_default_steps(arch: FNOArchitecture) -> FNOArchitecture:
    """The architecture with `block` and `last_block` empty where they are the default."""
    usual = arch.model_copy(update={"block": (), "last_block": ()})
    for last, name in ((False, "block"), (True, "last_block")):
        if arch.steps(last=last) == usual.steps(last=last):
            arch = arch.model_copy(update={name: ()})
    return arch

"""One small valid file of every supported kind, written by the usual library or function."""

from __future__ import annotations

import io
import json
import tarfile
import zipfile
from pathlib import Path

import numpy as np
import torch
from neuralop.models import FNO
from safetensors.torch import save_file

from tests.models.importers.original_scripts import Script

WIDTH = 4


def write_all(folder: Path) -> list[Path]:
    """Write every file; return the paths sorted by name, without the metadata files of state dicts."""
    network = FNO(n_modes=(4, 4), in_channels=1, out_channels=1, hidden_channels=WIDTH, n_layers=1)
    network.save_checkpoint(folder, "theirs")
    torch.save(network, folder / "module.pt")
    script = Script("C", (2,), WIDTH, 1, 1).state_dict()
    torch.save(script, folder / "script.pt")
    torch.save(script, folder / "legacy.pt", _use_new_zipfile_serialization=False)
    save_file(script, folder / "script.safetensors")
    torch.save(
        {"epoch": 1, "model_state_dict": script, "optimizer_state_dict": {}},
        folder / "training.pt",
    )
    (folder / "zip.mdlus").write_bytes(zip_of(mdlus()))
    (folder / "tar.mdlus").write_bytes(tar_of(mdlus()))
    scaling = {f"{side}_{name}": np.ones(1) for side in ("x", "y") for name in ("mean", "std")}
    np.savez(folder / "scaling.npz", **scaling)
    np.savez_compressed(folder / "packed.npz", **scaling)
    (folder / "scaling.json").write_text(json.dumps({k: v.tolist() for k, v in scaling.items()}))
    return sorted(path for path in folder.iterdir() if not path.name.endswith("_metadata.pkl"))


def mdlus() -> dict[str, bytes]:
    """The members of a .mdlus file with a one-dimensional FNO."""
    shapes = {
        "spec_encoder.lift_network.0.conv": (WIDTH // 2, 2, 1),
        "spec_encoder.lift_network.2.conv": (WIDTH, WIDTH // 2, 1),
        "spec_encoder.conv_layers.0": (WIDTH, WIDTH, 1),
        "decoder_net.layers.0.linear": (5, WIDTH),
        "decoder_net.final_layer.linear": (1, 5),
    }
    state = {f"{name}.weight": torch.randn(shape) for name, shape in shapes.items()}
    state |= {f"{name}.bias": torch.randn(shape[0]) for name, shape in shapes.items()}
    state["spec_encoder.spconv_layers.0.weights1"] = torch.randn(WIDTH, WIDTH, 3, 2)
    arguments = {
        "in_channels": 1, "out_channels": 1, "dimension": 1, "latent_channels": WIDTH,
        "num_fno_layers": 1, "num_fno_modes": 3, "decoder_layer_size": 5,
    }  # fmt: skip
    stream = io.BytesIO()
    torch.save(state, stream)
    kind = {"__name__": "FNO", "__module__": "physicsnemo.models.fno.fno", "__args__": arguments}
    version = {"physicsnemo_version": "2.0.0", "mdlus_file_version": "0.1.0"}
    return {
        "model.pt": stream.getvalue(),
        "args.json": json.dumps(kind).encode(),
        "metadata.json": json.dumps(version).encode(),
    }


def zip_of(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w") as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return stream.getvalue()


def tar_of(members: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return stream.getvalue()

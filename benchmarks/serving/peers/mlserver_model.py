"""MLServer: a custom runtime in the server process; tensors as JSON numbers or as base64 in JSON."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from mlserver import MLModel
from mlserver.codecs import Base64Codec, NumpyCodec
from mlserver.types import InferenceRequest, InferenceResponse, ResponseOutput

from benchmarks.serving.peers.model import Array, Model, from_bytes


class Runtime(MLModel):  # type: ignore[misc]
    """Answers requests of datatype BYTES in base64, others in numbers."""

    async def load(self) -> bool:
        self._model = Model()
        return True

    async def predict(self, payload: InferenceRequest) -> InferenceResponse:
        given = payload.inputs[0]
        if given.datatype == "BYTES":
            output = self._predict_bytes(Base64Codec.decode_input(given))
        else:
            fields = np.ascontiguousarray(NumpyCodec.decode_input(given), np.float32)
            output = NumpyCodec.encode_output("output", self._model(fields))
        return InferenceResponse(model_name=self.name, outputs=[output])

    def _predict_bytes(self, bodies: list[bytes]) -> ResponseOutput:
        answers: list[bytes] = []
        # MLServer's batches may mix sizes
        for _, same in groupby(bodies, key=len):
            fields: Array = np.concatenate([from_bytes(body) for body in same])
            answers += [field.tobytes() for field in self._model(fields)]
        return Base64Codec.encode_output("output", answers, use_bytes=False)

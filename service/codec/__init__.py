"""Wire formats: bytes to arrays and back, without HTTP and without the engine."""

# Every target sets up what it needs in .venv; a second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SERVE_READY := $(VENV)/.serve-ready
DEV_READY := $(VENV)/.dev-ready

.PHONY: install serve test test-thorough test-ray soak test-gpu lint format bench bench-gpu bench-serving clean

install: $(SERVE_READY)

serve: $(SERVE_READY)
	$(BIN)/turbofno serve

# Two at a time: much of it waits for servers to start. Those of one file share theirs. What was only too slow for a
# promised time is tried again (docs/decisions/0028-measured-again.md). Every run draws the same; with TEST_SEED=new, anew.
test: $(DEV_READY)
	$(BIN)/python -m pytest --numprocesses 2 --dist loadfile --reruns 2 --only-rerun TooSlow --rerun-show-tracebacks

# Some minutes longer: more of what is drawn at random, and drawn anew; a failure shows the TEST_SEED that repeats it.
test-thorough: $(DEV_READY)
	TEST_THOROUGH=1 TEST_SEED=$${TEST_SEED:-new} $(BIN)/python -m pytest

# Two Ray nodes on this machine, for a minute or two.
test-ray: $(DEV_READY)
	$(PIP) --no-build-isolation --editable '.[ray]'
	TEST_RAY=1 $(BIN)/python -m pytest tests/deploy/test_ray.py

# An hour's worth of mixed requests: nothing lost, nothing left behind.
soak: $(DEV_READY)
	SOAK_REQUESTS=200000 $(BIN)/python -m pytest -s tests/e2e/test_soak.py

# mypy and import-linter do not follow an editable install, so the folders are linked under their import names.
lint: $(DEV_READY)
	mkdir -p build/importable/turbofno
	ln -sfn ../../../service build/importable/turbofno/service
	ln -sfn ../../../models build/importable/turbofno/models
	ln -sfn ../../service/turbofno_client build/importable/turbofno_client
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=build/importable:. $(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.gpu.record

format: $(DEV_READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(DEV_READY)
	$(BIN)/python -m benchmarks

# With a CUDA PyTorch in the environment and nvcc on the PATH, `make install` has built the kernels. Commit the record.
test-gpu: $(DEV_READY)
	$(BIN)/python -m tests.gpu.run

bench-gpu: $(DEV_READY)
	$(BIN)/python -m benchmarks.gpu
	$(BIN)/python -m benchmarks.gpu.picture
	$(BIN)/python -m benchmarks.serving.gpu
	$(BIN)/python -m benchmarks.tables

# LitServe, MLServer, BentoML and Ray Serve get environments of their own, in .venv-peers.
bench-serving: $(SERVE_READY)
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.tables

clean:
	rm -rf $(VENV) .venv-peers build .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

# No build isolation: the build tools are here anyway, because tests build the wheel and the kernels.
$(SERVE_READY): $(BIN)/python pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*/*)
	@echo "setting up $(VENV); the first time this downloads PyTorch and takes some minutes"
	$(PIP) torch
	$(PIP) scikit-build-core cmake ninja
	$(PIP) --no-build-isolation --editable '.[serve]'
	touch $@

$(DEV_READY): $(SERVE_READY)
	$(PIP) --no-build-isolation --editable '.[serve,otel,lint,test]'
	touch $@

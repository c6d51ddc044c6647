# Each target installs what it needs into .venv; a second run is quick.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt
SERVE_READY := $(VENV)/.serve-ready
DEV_READY := $(VENV)/.dev-ready
RELEASE_READY := $(VENV)/.release-ready

# Python keeps what it compiled, wherever that is turned off: the tests start hundreds of processes.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: install serve test test-thorough test-ray soak test-gpu lint format docs wheel bench bench-gpu bench-serving clean

install: $(SERVE_READY)

serve: $(SERVE_READY)
	$(BIN)/turbofno serve

# Three workers also on two cores, because many tests wait for a server to start; the tests of a file share a worker and its
# server. Tests that missed a time limit are run again. Threads of one worker that wait for each other must not take the cores of
# the others; OpenBLAS' wait for work after each product of numpy.
test: $(DEV_READY)
	OMP_WAIT_POLICY=PASSIVE OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest --numprocesses 3 --dist loadfile --reruns 2 --only-rerun TooSlow --rerun-show-tracebacks

# More random cases, with a new TEST_SEED; a failure prints the seed that repeats it.
test-thorough: $(DEV_READY)
	TEST_THOROUGH=1 TEST_SEED=$${TEST_SEED:-new} $(BIN)/python -m pytest

# Ray nodes on this machine, for two minutes or three.
test-ray: $(DEV_READY)
	$(PIP) --no-build-isolation --editable '.[ray]'
	TEST_RAY=1 $(BIN)/python -m pytest tests/deploy/test_ray.py tests/deploy/test_ray_slabs.py

# About an hour of mixed requests; checks that none is lost and that memory, threads and files do not grow.
soak: $(DEV_READY)
	SOAK_REQUESTS=200000 $(BIN)/python -m pytest -s tests/e2e/test_soak.py

lint: $(DEV_READY) build/importable
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	PYTHONPATH=build/importable:. $(BIN)/lint-imports --no-cache
	$(BIN)/python -m tests.gpu.record

# The packages under their import names, for mypy and import-linter, which do not follow an editable install, and to run
# without an install: PYTHONPATH=build/importable:.
build/importable:
	mkdir -p $@/turbofno
	ln -sfn ../../../service $@/turbofno/service
	ln -sfn ../../../models $@/turbofno/models
	ln -sfn ../../service/turbofno_client $@/turbofno_client

format: $(DEV_READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# The site, in build/site.
docs: $(DEV_READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The sdist, the pure wheel and the Linux wheel with the kernels (needs nvcc), in dist/. auditwheel fails if the library
# does not fit the tag.
wheel: $(RELEASE_READY)
	rm -rf dist build/unaudited
	$(BIN)/python -m build --no-isolation --sdist .
	TURBOFNO_PURE=1 $(BIN)/python -m build --no-isolation --wheel .
	$(BIN)/python -m build --no-isolation --wheel --config-setting=cmake.define.TURBOFNO_CUDA=ON --outdir build/unaudited .
	PATH=$(BIN):$$PATH auditwheel repair --plat manylinux_2_34_x86_64 --wheel-dir dist build/unaudited/*.whl

bench: $(DEV_READY)
	$(BIN)/python -m benchmarks

# Needs a CUDA build of PyTorch in .venv, and nvcc on the PATH when `make install` ran. Commit the record that it writes.
test-gpu: $(DEV_READY)
	$(BIN)/python -m tests.gpu.run

bench-gpu: $(DEV_READY)
	$(BIN)/python -m benchmarks.gpu
	$(BIN)/python -m benchmarks.gpu.picture
	$(BIN)/python -m benchmarks.serving.gpu
	$(BIN)/python -m benchmarks.tables

# Installs LitServe, MLServer, BentoML and Ray Serve, each into an environment of its own in .venv-peers.
bench-serving: $(SERVE_READY) build/importable
	$(BIN)/python -m benchmarks.serving
	$(BIN)/python -m benchmarks.tables

clean:
	rm -rf $(VENV) .venv-peers build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Without pip the environment was interrupted: venv completes it. Of an old Python pip would say only that versions conflict.
$(BIN)/pip:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "turbofno needs Python 3.11 or later, but $(PYTHON) is " + sys.version.split()[0] + "; name another one: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

# No build isolation: the tests, too, need the build tools in .venv.
$(SERVE_READY): $(BIN)/pip pyproject.toml constraints.txt CMakeLists.txt $(wildcard csrc/*/*)
	@echo "installing into $(VENV); the first time this downloads PyTorch and takes some minutes"
	$(PIP) torch
	$(PIP) scikit-build-core cmake ninja
	$(PIP) --no-build-isolation --editable '.[serve]'
	touch $@

$(DEV_READY): $(SERVE_READY)
	$(PIP) --no-build-isolation --editable '.[serve,otel,lint,docs,test]'
	touch $@

$(RELEASE_READY): $(SERVE_READY)
	$(PIP) --no-build-isolation --editable '.[release]'
	touch $@

# Two images: `docker build --target cpu .` and `docker build --target cuda .`; docs/how-to/deploy.md says how to run them.
ARG PYTHON_IMAGE=docker.io/library/python:3.11.14-slim-bookworm

FROM ${PYTHON_IMAGE} AS python
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_ROOT_USER_ACTION=ignore \
    PIP_CONSTRAINT=/src/constraints.txt
WORKDIR /src
COPY constraints.txt ./
RUN python3 -m venv /opt/turbofno
ENV PATH=/opt/turbofno/bin:$PATH

# PyTorch has a layer of its own: the largest, and it changes only with constraints.txt. The CPU build comes from PyTorch's
# index, its dependencies from PyPI.
FROM python AS torch-cpu
ARG TORCH_CPU_INDEX=https://download.pytorch.org/whl/cpu
# hadolint ignore=DL3013
RUN pip install --no-deps --index-url "${TORCH_CPU_INDEX}" torch && pip install torch

FROM python AS torch-cuda
# hadolint ignore=DL3013
RUN pip install torch

FROM python AS wheel-cpu
COPY LICENSE README.md CMakeLists.txt pyproject.toml ./
COPY turbofno_ops turbofno_ops
COPY models models
COPY service service
RUN TURBOFNO_PURE=true pip wheel --no-deps --wheel-dir /wheels .

# nvcc comes from pinned wheels instead of a second base image of several gigabytes. The kernels need no PyTorch to build.
FROM python AS wheel-cuda
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ \
    && rm -rf /var/lib/apt/lists/*
ENV CUDA_HOME=/opt/turbofno/lib/python3.11/site-packages/nvidia/cu13
ENV CUDACXX=${CUDA_HOME}/bin/nvcc
# nvcc searches lib64; the wheels install into lib.
# hadolint ignore=DL3013
RUN pip install \
    nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96 nvidia-cuda-cccl==13.0.85 \
    && ln -s lib "${CUDA_HOME}/lib64"
COPY LICENSE README.md CMakeLists.txt pyproject.toml ./
COPY turbofno_ops turbofno_ops
COPY models models
COPY service service
COPY csrc csrc
RUN pip wheel --no-deps --wheel-dir /wheels \
    --config-settings=cmake.define.TURBOFNO_CUDA=ON .

FROM torch-cpu AS environment-cpu
COPY --from=wheel-cpu /wheels /wheels
RUN pip install "$(echo /wheels/turbofno-*.whl)[serve]" && pip uninstall --yes pip

FROM torch-cuda AS environment-cuda
COPY --from=wheel-cuda /wheels /wheels
RUN pip install "$(echo /wheels/turbofno-*.whl)[serve]" && pip uninstall --yes pip

FROM ${PYTHON_IMAGE} AS runtime
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /nonexistent \
    --shell /usr/sbin/nologin turbofno
WORKDIR /app
COPY LICENSE ./
# The service writes nothing to disk, so the root file system may be read-only.
ENV PATH=/opt/turbofno/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1 \
    MPLCONFIGDIR=/tmp \
    TURBOFNO_HOST=0.0.0.0 \
    TURBOFNO_PORT=8080 \
    TURBOFNO_LOG_FORMAT=json
USER 10001:10001
EXPOSE 8080
# Readiness, so that containers which depend on this one wait for its models. For restarts use /healthz. Not by urllib, which
# would ask the proxy that Docker's configuration may give to every container.
HEALTHCHECK --interval=10s --timeout=5s --start-period=120s --retries=3 \
    CMD ["python", "-c", "import http.client, os, sys; c = http.client.HTTPConnection('127.0.0.1', os.environ['TURBOFNO_PORT'], timeout=4); c.request('GET', '/readyz'); sys.exit(c.getresponse().status != 200)"]
# The server is process 1 and gets SIGTERM: it drains and exits with 0.
ENTRYPOINT ["turbofno"]
CMD ["serve"]

FROM runtime AS cpu
COPY --from=environment-cpu /opt/turbofno /opt/turbofno
ENV TURBOFNO_DEVICE=cpu
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title="turbofno" \
      org.opencontainers.image.description="Inference service for trained Fourier neural operators, CPU" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

FROM runtime AS cuda
COPY --from=environment-cuda /opt/turbofno /opt/turbofno
# Without its kernels the container does not start. 16, the default batch size, is for CPUs.
ENV TURBOFNO_DEVICE=cuda \
    TURBOFNO_REQUIRE_NATIVE=true \
    TURBOFNO_MAX_BATCH_SIZE=64 \
    NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
ARG VERSION=unreleased
ARG REVISION=unknown
LABEL org.opencontainers.image.title="turbofno" \
      org.opencontainers.image.description="Inference service for trained Fourier neural operators, NVIDIA A100 and Hopper" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.revision="${REVISION}"

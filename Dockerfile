# CPU:   docker build --tag tsr .
# CUDA:  docker build --tag tsr --build-arg TORCH_INDEX= .
#        An empty index takes PyTorch as PyPI has it, with CUDA's libraries inside, so the host needs the driver and
#        NVIDIA's container toolkit alone; an address takes another build, such as one for an older driver.
# Run:   docker run --rm --volume "$PWD/runs:/opt/tsr/runs" tsr fit --config configs/quickstart.yaml   (CUDA: --gpus all)
#        A mounted folder must be writable for user 1000.
ARG BASE=python:3.11-slim
FROM ${BASE}

# bitsandbytes' CPU kernels need OpenMP's runtime, which the slim image lacks; our attention on CPUs needs a C compiler.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends gcc libc6-dev libgomp1 make \
    && rm -rf /var/lib/apt/lists/*

RUN useradd --create-home --uid 1000 tsr && install --directory --owner tsr --group tsr /opt/tsr /opt/tsr/runs
WORKDIR /opt/tsr
USER tsr

# The README's set-up, before the code comes: a change to the code downloads nothing again.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
COPY --chown=tsr:tsr Makefile pyproject.toml constraints.txt README.md LICENSE ./
RUN PIP_NO_CACHE_DIR=1 make setup TORCH_INDEX="${TORCH_INDEX}"
COPY --chown=tsr:tsr . .

ENV PATH=/opt/tsr/.venv/bin:$PATH
ENTRYPOINT ["tsr"]
CMD ["--help"]

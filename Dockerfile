# docker build -t rollmill .                          for the CPU
# docker build -t rollmill --build-arg TORCH=cuda .   with PyTorch's CUDA libraries (gigabytes); run it with --gpus all
# docker run --rm --shm-size=2g -v "$PWD/runs:/app/runs" rollmill train -f doom_basic
FROM python:3.12-slim

ARG TORCH=cpu
ARG EXTRAS=vizdoom,video,tensorboard

# What the simulators and the video encoder load at run time.
RUN apt-get update \
 && apt-get install --yes --no-install-recommends libgl1 libglib2.0-0 libegl1 libopenal1 \
 && rm -rf /var/lib/apt/lists/*

WORKDIR /src
COPY pyproject.toml README.md LICENSE constraints.txt ./
COPY src src
RUN if [ "$TORCH" = cpu ]; then \
      pip install --no-cache-dir --constraint constraints.txt torch --index-url https://download.pytorch.org/whl/cpu; \
    fi \
 && pip install --no-cache-dir --constraint constraints.txt ".[$EXTRAS]"

RUN useradd --create-home --uid 1000 agent && mkdir -p /app/runs && chown -R agent /app
USER agent
WORKDIR /app
ENTRYPOINT ["rollmill"]
CMD ["--help"]

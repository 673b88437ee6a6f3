# SPDX-License-Identifier: Apache-2.0
# The program for the CPU, by the README's steps: docker build -t moesaic . && docker run --rm moesaic list recipes
# BASE may be debian:12-slim, debian:13-slim or ubuntu:24.04.
ARG BASE=debian:13-slim
FROM ${BASE}
WORKDIR /opt/moesaic
ENV MOESAIC_VENV=/opt/venv PATH=/opt/moesaic/build/release/bin:$PATH
# What the build needs is a layer of its own, made again only when its lists change.
COPY tools/setup.sh tools/env.sh tools/
COPY tools/python/requirements*.txt tools/python/
RUN tools/setup.sh ca-certificates
COPY . .
RUN tools/build.sh moesaic_program
WORKDIR /work
ENTRYPOINT ["moesaic"]

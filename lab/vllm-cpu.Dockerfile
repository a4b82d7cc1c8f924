# LAB ONLY: vLLM's CPU build on Debian, so that virtual Sparks really serve. A real Spark gets a real image.
# lab/vllm_image.py makes the context: `site` (packages, pruned) and `bin/vllm`. No index is asked here.
ARG ROOTFS
FROM ${ROOTFS}
# Debian forbids pip outside a venv; this system has no other user of its Python.
RUN rm -rf /usr/lib/python3.11/EXTERNALLY-MANAGED /usr/share/doc /usr/share/man /usr/share/locale /usr/share/info \
    && mkdir -p /usr/local/lib/python3.11/dist-packages
COPY bin/ /usr/local/bin/
COPY site/ /usr/local/lib/python3.11/dist-packages/
# TORCHDYNAMO_DISABLE: the image has no C++ compiler, so nothing may be compiled at the first request.
# nobind, one thread: all virtual Sparks share the same few cores.
ENV PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin \
    LANG=C.UTF-8 \
    HF_HUB_OFFLINE=1 \
    VLLM_NO_USAGE_STATS=1 \
    TORCHDYNAMO_DISABLE=1 \
    VLLM_CPU_OMP_THREADS_BIND=nobind \
    OMP_NUM_THREADS=1
CMD ["vllm", "--help"]

"""Tests whose kernels each hold one bug, and some that hold none. They need PyTorch with CUDA and NVRTC."""

import functools
import sys

import pytest
import torch

SOURCES = {
    "store_past": r"""
extern "C" __global__ void store_past(float *x, int n) {
  int i = threadIdx.x;
  if (i < n) x[i + 1] = 2.0f;
}
""",
    "race": r"""
extern "C" __global__ void race(float *y) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = s[63 - threadIdx.x];
}
""",
    "copy": r"""
extern "C" __global__ void copy(float *y, const float *x) { y[threadIdx.x] = x[threadIdx.x]; }
""",
    "spin": r"""
extern "C" __global__ void spin(volatile int *flag) { while (*flag == 0) {} }
""",
    "half_barrier": r"""
extern "C" __global__ void half_barrier(float *y) {
  if (threadIdx.x < 16) { y[threadIdx.x] = 1.0f; __syncthreads(); }
  y[threadIdx.x] = 2.0f;
}
""",
}


@functools.cache
def kernel(name):
    return torch.cuda._compile_kernel(SOURCES[name], name, nvcc_options=["-lineinfo"])


def launch(name, *args, threads=64):
    kernel(name)(grid=(1, 1, 1), block=(threads, 1, 1), args=args)
    torch.cuda.synchronize()


class TestPlanted:
    def test_clean_cuda(self):
        x = torch.zeros(65, device="cuda")
        launch("store_past", x, 64)
        assert x.sum().item() == 128

    def test_out_of_bounds_cuda(self):
        x = torch.zeros(64, device="cuda")
        launch("store_past", x, 64)

    def test_race_cuda(self):
        launch("race", torch.zeros(64, device="cuda"))

    def test_uninitialised_cuda(self):
        x, y = torch.empty(64, device="cuda"), torch.zeros(64, device="cuda")
        launch("copy", y, x)

    def test_half_barrier_cuda(self):
        launch("half_barrier", torch.zeros(64, device="cuda"), threads=32)

    def test_hang_cuda(self):
        launch("spin", torch.zeros(1, dtype=torch.int32, device="cuda"), threads=1)

    def test_fails_cuda(self):
        assert torch.ones(3, device="cuda").sum().item() == 4

    def test_only_cpu(self):
        assert torch.ones(3).sum().item() == 3


def test_product_cuda():
    x = torch.ones(256, 256, device="cuda")
    assert (x @ x)[0, 0].item() == 256


def test_convolution_cuda():
    x, w = torch.ones(1, 3, 32, 32, device="cuda"), torch.ones(4, 3, 3, 3, device="cuda")
    assert torch.nn.functional.conv2d(x, w)[0, 0, 0, 0].item() == 27


def test_fourier_cuda():
    assert torch.fft.fft(torch.ones(64, device="cuda")).abs()[0].item() == 64


if __name__ == "__main__":
    sys.exit(pytest.main([__file__, "-q", "-x", "-p", "no:cacheprovider", "-k", sys.argv[1].replace(".", " and ")]))

// CUDA programs that each hold one bug of a class that compute-sanitizer finds, and some that hold none.
// usage: planted --list, or planted NAME
// build: nvcc -O1 -lineinfo -o planted planted.cu -lcublas
#include <cublas_v2.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>


__global__ void fill(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] = 1.0f;
}
__global__ void store_past(float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i + 1] = 2.0f;  // out of bounds
}
__global__ void load_past(float *y, const float *x, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = x[i + n];  // out of bounds
}
__global__ void store_before(double *x) { x[-1 - (int)threadIdx.x] = 1.0; }  // before the first
__global__ void null_store(int *x) { x[threadIdx.x] = 1; }
__global__ void misaligned(char *x) { *(int *)(x + 1) = 7; }
__global__ void shared_past(float *y, int past) {
  __shared__ float s[32];
  s[threadIdx.x + past] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
__global__ void local_past(float *y, int at) {
  float a[8];
  for (int i = 0; i < 8; i++) a[i] = y[i];
  a[at] = 3.0f;
  y[threadIdx.x] = a[threadIdx.x & 7];
}
__global__ void load_unwritten(float *y, const float *x) { y[threadIdx.x] = x[threadIdx.x] + 1.0f; }
__global__ void race_read(float *y) {
  __shared__ float s[64];
  s[threadIdx.x] = threadIdx.x;
  y[threadIdx.x] = s[63 - threadIdx.x];  // a barrier is missing before
}
__global__ void race_write(float *y) {
  __shared__ float s[1];
  s[0] = threadIdx.x;
  __syncthreads();
  y[threadIdx.x] = s[0];
}
__global__ void race_reread(float *y) {
  __shared__ float s[64];
  s[threadIdx.x] = y[threadIdx.x];
  __syncthreads();
  float v = s[63 - threadIdx.x];
  s[threadIdx.x] = v;  // write after read
  __syncthreads();
  y[threadIdx.x] = s[threadIdx.x];
}
__global__ void tree_sum(float *y, const float *x) {
  __shared__ float s[64];
  s[threadIdx.x] = x[threadIdx.x];
  for (int h = 32; h > 0; h /= 2) {
    __syncthreads();
    if (threadIdx.x < h) s[threadIdx.x] += s[threadIdx.x + h];
  }
  if (threadIdx.x == 0) y[0] = s[0];
}
__global__ void half_barrier(float *y) {
  if (threadIdx.x < 16) {
    y[threadIdx.x] = 1.0f;
    __syncthreads();
  }
  y[threadIdx.x] = 2.0f;
}
__global__ void early_exit(float *y) {
  if (threadIdx.x >= 40) return;
  y[threadIdx.x] = 1.0f;
  __syncthreads();
  y[threadIdx.x] = y[39 - threadIdx.x];
}
__global__ void partial_warp(float *y) {
  y[threadIdx.x] = 1.0f;
  if (threadIdx.x < 16) __syncwarp(0xffffffff >> 20);  // the mask lacks threads that arrive
}
__global__ void spin(volatile int *flag) {
  while (*flag == 0) {
  }
}
__global__ void device_assert(int *x);
__global__ void trap(int *x) {
  if (x[0] == 0) __trap();
}

#include <cassert>
__global__ void device_assert(int *x) { assert(x[threadIdx.x] == 1); }

template <class T> T *device(size_t n, bool written = true) {
  T *p;
  if (cudaMalloc(&p, n * sizeof(T)) != cudaSuccess) exit(3);
  if (written) cudaMemset(p, 0, n * sizeof(T));
  return p;
}

static int done() {
  cudaError_t e = cudaDeviceSynchronize();
  if (e != cudaSuccess) {
    printf("ends with: %s\n", cudaGetErrorString(e));
    return 2;
  }
  return 0;
}

struct Case {
  const char *name;
  int (*run)();
};

static int run_clean() {
  float *x = device<float>(64), *y = device<float>(64);
  fill<<<2, 32>>>(x, 64);
  tree_sum<<<1, 64>>>(y, x);
  float v = 0;
  cudaMemcpy(&v, y, 4, cudaMemcpyDeviceToHost);
  cudaFree(x);
  cudaFree(y);
  printf("sum %g\n", v);
  return v == 64 ? 0 : 1;
}
static int run_blas() {
  float *x = device<float>(1 << 20);
  cublasHandle_t h;
  if (cublasCreate(&h) != CUBLAS_STATUS_SUCCESS) return 1;
  float one = 1, zero = 0, *z = device<float>(1 << 20);
  cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 1024, 1024, 1024, &one, x, 1024, x, 1024, &zero, z, 1024);
  int rc = done();
  cublasDestroy(h);
  cudaFree(x);
  cudaFree(z);
  return rc;
}
// run_blas_short gives cuBLAS a result that is too small: the access is the library's kernel's.
static int run_blas_short() {
  float *x = device<float>(1 << 16), *z = device<float>(1 << 10);
  cublasHandle_t h;
  if (cublasCreate(&h) != CUBLAS_STATUS_SUCCESS) return 1;
  float one = 1, zero = 0;
  cublasSgemm(h, CUBLAS_OP_N, CUBLAS_OP_N, 256, 256, 256, &one, x, 256, x, 256, &zero, z, 256);
  return done();
}

static const Case cases[] = {
    {"clean", run_clean},
    {"blas", run_blas},
    {"blas_short", run_blas_short},
    {"oob_write", [] { float *x = device<float>(64); store_past<<<2, 32>>>(x, 64); return done(); }},
    {"oob_read", [] { float *x = device<float>(64), *y = device<float>(64); load_past<<<2, 32>>>(y, x, 64); return done(); }},
    {"oob_before", [] { double *x = device<double>(64); store_before<<<1, 4>>>(x); return done(); }},
    {"oob_shared", [] { float *y = device<float>(32); shared_past<<<1, 32>>>(y, 4); return done(); }},
    {"oob_local", [] { float *y = device<float>(32); local_past<<<1, 32>>>(y, 1 << 20); return done(); }},
    {"null_write", [] { null_store<<<1, 4>>>(nullptr); return done(); }},
    {"use_after_free", [] { float *x = device<float>(64); cudaFree(x); fill<<<2, 32>>>(x, 64); return done(); }},
    {"misaligned", [] { char *x = device<char>(64); misaligned<<<1, 1>>>(x); return done(); }},
    {"double_free", [] { float *x = device<float>(64); cudaFree(x); cudaFree(x); return done(); }},
    {"copy_past", [] {
       float *x = device<float>(64);
       static char h[4096];
       cudaError_t e = cudaMemcpy(x, h, 4096, cudaMemcpyHostToDevice);
       printf("copy: %s\n", cudaGetErrorString(e));
       return 0;
     }},
    {"api_error", [] { return cudaSetDevice(99) == cudaSuccess ? 1 : 0; }},
    {"leak", [] {
       device<float>(64);
       device<char>(1000);
       float *x = device<float>(16);
       cudaFree(x);
       int rc = done();
       cudaDeviceReset();
       return rc;
     }},
    {"async_leak", [] { void *p; cudaMallocAsync(&p, 512, 0); int rc = done(); return rc; }},
    {"stream_order", [] {
       cudaStream_t a, b;
       cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
       cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
       float *p;
       cudaMallocAsync((void **)&p, 256, a);
       fill<<<2, 32, 0, b>>>(p, 64);  // nothing orders b after the allocation
       cudaFreeAsync(p, a);
       return done();
     }},
    {"stream_order_free", [] {
       cudaStream_t a, b;
       cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
       cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
       float *p;
       cudaMallocAsync((void **)&p, 256, a);
       cudaStreamSynchronize(a);
       fill<<<2, 32, 0, b>>>(p, 64);
       cudaFreeAsync(p, a);  // nothing orders the free after b
       return done();
     }},
    {"uninit", [] { float *x = device<float>(32, false), *y = device<float>(32); load_unwritten<<<1, 32>>>(y, x); return done(); }},
    {"uninit_half", [] {
       float *x = device<float>(32, false), *y = device<float>(32);
       cudaMemset(x, 0, 64);
       load_unwritten<<<1, 32>>>(y, x);
       return done();
     }},
    {"uninit_copy", [] {
       float *x = device<float>(32, false), h[32];
       cudaMemcpy(h, x, sizeof h, cudaMemcpyDeviceToHost);
       return done();
     }},
    {"race_read", [] { float *y = device<float>(64); race_read<<<1, 64>>>(y); return done(); }},
    {"race_write", [] { float *y = device<float>(64); race_write<<<1, 64>>>(y); return done(); }},
    {"race_reread", [] { float *y = device<float>(64); race_reread<<<1, 64>>>(y); return done(); }},
    {"barrier_divergent", [] { float *y = device<float>(32); half_barrier<<<1, 32>>>(y); return done(); }},
    {"barrier_exited", [] { float *y = device<float>(64); early_exit<<<1, 64>>>(y); return done(); }},
    {"warp_mask", [] { float *y = device<float>(64); partial_warp<<<1, 64>>>(y); return done(); }},
    {"assert", [] { int *x = device<int>(32); device_assert<<<1, 32>>>(x); return done(); }},
    {"trap", [] { int *x = device<int>(32); trap<<<1, 1>>>(x); return done(); }},
    {"host_crash", [] { fill<<<1, 1>>>(device<float>(1), 1); done(); *(volatile int *)8 = 1; return 0; }},
    {"host_fails", [] { fill<<<1, 1>>>(device<float>(1), 1); done(); printf("expected 1, got 2\n"); return 1; }},
    {"hang", [] {
       int *f;
       cudaHostAlloc(&f, 4, cudaHostAllocMapped);
       *f = 0;
       spin<<<1, 1>>>(f);
       return done();
     }},
};

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "--list")) {
    for (const Case &c : cases) printf("%s\n", c.name);
    return 0;
  }
  for (const Case &c : cases)
    if (argc == 2 && !strcmp(argv[1], c.name)) return c.run();
  fprintf(stderr, "usage: %s --list | NAME\n", argv[0]);
  return 64;
}

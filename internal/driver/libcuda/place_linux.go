//go:build !tenon_sim

package libcuda

import "syscall"

// libraryNames are where the driver's library is: the loader's search path, then WSL, container images and NixOS.
var libraryNames = []string{
	"libcuda.so.1",
	"/usr/lib/wsl/lib/libcuda.so.1",
	"/usr/local/nvidia/lib64/libcuda.so.1",
	"/run/opengl-driver/lib/libcuda.so.1",
}

// deviceFile exists where NVIDIA's kernel driver has found a GPU.
const deviceFile = "/dev/nvidia0"

func threadID() uint64 { return uint64(syscall.Gettid()) }

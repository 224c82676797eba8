//go:build !tenon_sim

package libcuda

import "syscall"

// libraryNames are the places to look for the driver's library: the loader's search path, then WSL, container images and NixOS.
var libraryNames = []string{
	"libcuda.so.1",
	"/usr/lib/wsl/lib/libcuda.so.1",
	"/usr/local/nvidia/lib64/libcuda.so.1",
	"/run/opengl-driver/lib/libcuda.so.1",
}

// deviceFile exists if NVIDIA's kernel driver has found a GPU.
const deviceFile = "/dev/nvidia0"

func threadID() uint64 { return uint64(syscall.Gettid()) }

package cli

import (
	"errors"
	"runtime"
	"strings"

	"tenon.dev/internal/dl"
)

// optional is a library that may be installed.
type optional struct {
	name string
	// files are its names by operating system, newest first.
	files map[string][]string
	// uses says what Tenon does with the library, and without what happens if it is missing.
	uses, without string
	// version is a function without arguments that returns the version, or "".
	version string
}

// optionals are the libraries that tenon doctor looks for.
var optionals = []optional{
	{
		name:    "nvml",
		files:   map[string][]string{"linux": {"libnvidia-ml.so.1"}, "windows": {"nvml.dll"}},
		uses:    "names the driver's version, temperature, power and load",
		without: "version, temperature, power and load of GPUs are not shown, and nothing runs slower",
	},
	{
		name: "cublasLt",
		files: map[string][]string{"linux": {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so"},
			"windows": {"cublasLt64_13.dll", "cublasLt64_12.dll"}},
		uses:    notCalled,
		without: "nothing runs slower: matrix products run in Tenon's own kernels",
		version: "cublasLtGetVersion",
	},
	{
		name: "cudnn",
		files: map[string][]string{"linux": {"libcudnn.so.9", "libcudnn.so.8", "libcudnn.so"},
			"windows": {"cudnn64_9.dll", "cudnn64_8.dll"}},
		uses:    notCalled,
		without: "nothing runs slower: convolutions run in Tenon's own kernels",
		version: "cudnnGetVersion",
	},
	{
		name:    "nccl",
		files:   map[string][]string{"linux": {"libnccl.so.2", "libnccl.so"}},
		uses:    notCalled,
		without: "nothing is lost: Tenon does not work on several GPUs together yet",
	},
	{
		name: "cusparse",
		files: map[string][]string{"linux": {"libcusparse.so.13", "libcusparse.so.12", "libcusparse.so"},
			"windows": {"cusparse64_13.dll", "cusparse64_12.dll"}},
		uses:    notCalled,
		without: "nothing is lost: the kernels of sparse tensors are Tenon's own",
	},
}

// notCalled is the use of most libraries in this version.
const notCalled = "not called by this version"

// found is the outcome of looking for a library.
type found struct {
	path    string
	version uint64 // in the library's own numbering, 0 if unknown
	// leftOut says that this program cannot load libraries at all.
	leftOut bool
	err     error
}

// toolkit is the folder of NVIDIA's toolkit for libraries that the loader does not find by itself.
const toolkit = "/usr/local/cuda/lib64/"

// look loads the library and unloads it again.
func (o *optional) look() found {
	names := o.files[runtime.GOOS]
	if len(names) == 0 {
		return found{err: errors.New("it does not exist for " + runtime.GOOS)}
	}
	so, err := dl.Open(names...)
	if err != nil && runtime.GOOS == "linux" {
		var there []string
		for _, n := range names {
			there = append(there, toolkit+n)
		}
		if other, miss := dl.Open(there...); miss == nil {
			so, err = other, nil
		}
	}
	if err != nil {
		f := found{err: err, leftOut: errors.Is(err, dl.ErrLeftOut)}
		if strings.Count(err.Error(), "No such file") == len(names) {
			f.err = errors.New("looked for " + strings.Join(names, ", "))
		}
		return f
	}
	f := found{path: so.Path()}
	if o.version != "" {
		if p, err := so.Symbol(o.version); err == nil {
			f.version = uint64(p.Call())
		}
	}
	f.err = so.Close()
	return f
}

//go:build !tenon_sim

package libcuda

import "syscall"

// libraryNames are where the driver's library is: the system folder.
var libraryNames = []string{"nvcuda.dll"}

// deviceFile is none: Windows shows no file for a device.
const deviceFile = ""

var getCurrentThreadID = syscall.NewLazyDLL("kernel32.dll").NewProc("GetCurrentThreadId")

func threadID() uint64 {
	id, _, _ := getCurrentThreadID.Call()
	return uint64(id)
}

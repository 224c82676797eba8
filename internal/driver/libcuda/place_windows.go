//go:build !tenon_sim

package libcuda

import "syscall"

// libraryNames are the places to look for the driver's library: the system folder.
var libraryNames = []string{"nvcuda.dll"}

// deviceFile is empty: Windows has no device files.
const deviceFile = ""

var getCurrentThreadID = syscall.NewLazyDLL("kernel32.dll").NewProc("GetCurrentThreadId")

func threadID() uint64 {
	id, _, _ := getCurrentThreadID.Call()
	return uint64(id)
}

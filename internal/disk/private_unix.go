//go:build unix

package disk

import (
	"io/fs"
	"os"
	"syscall"
)

// private reports whether only this user and root can write to the folder.
func private(st fs.FileInfo) bool {
	s, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(s.Uid) == os.Geteuid() && st.Mode().Perm()&0o022 == 0
}

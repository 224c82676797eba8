//go:build !unix

package disk

import "io/fs"

// private relies on the permissions that the folder inherits from the user's cache folder.
func private(fs.FileInfo) bool { return true }

//go:build !unix

package disk

import "io/fs"

// private leaves the matter to the rights that the user's cache folder hands down.
func private(fs.FileInfo) bool { return true }

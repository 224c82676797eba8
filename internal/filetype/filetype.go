// Package filetype names files that a reader refuses, by how they begin. It must not depend on the packages that read them.
package filetype

import (
	"encoding/binary"
	"strings"
)

// Head is the number of bytes that Guess needs at most.
const Head = 64

// Zip and OldTorch begin zip archives, as .pt files are, and .pt files from before PyTorch 1.6.
const (
	Zip      = "PK\x03\x04"
	OldTorch = "\x80\x02\x8a\n"
)

// Guess says what a file that begins with head is and what to do about it, such as "empty; save or download it again", to follow the words
// "it is". "" is a file like none that people have in the place of another.
func Guess(head []byte) string {
	s := string(head)
	switch {
	case s == "":
		return "empty; save or download it again"
	case strings.HasPrefix(s, "version https://git-lfs"):
		return "a pointer of Git LFS; get the file itself with git lfs pull"
	case strings.HasPrefix(s, Zip):
		return "a zip archive, as .pt files are; open those with torchfile.Open"
	case strings.HasPrefix(s, OldTorch):
		return "a pickle, as .pt files before PyTorch 1.6 are; open those with torchfile.Open"
	case len(s) > 8 && s[8] == '{' && binary.LittleEndian.Uint64(head) < 1<<32: // a length, then a header
		return "a safetensors file; load it with nn.LoadFile, or open it with safetensors.Open"
	case strings.HasPrefix(s, "\x1f\x8b"):
		return "compressed with gzip; unpack it first"
	}
	text := strings.TrimLeft(s, "\ufeff \t\r\n")
	switch {
	case strings.HasPrefix(text, "<"):
		return "HTML or XML; get the file itself, not a page about it"
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		return "JSON; give the file with the data"
	}
	return ""
}

package disk

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"os"
	"runtime"
	"sync"
)

// Build returns a text that differs between builds of programs, or "" if the program's file cannot be read.
var Build = sync.OnceValue(func() string {
	name := "/proc/self/exe" // the running file, though another build may have its name by now
	if runtime.GOOS != "linux" {
		var err error
		if name, err = os.Executable(); err != nil {
			return ""
		}
	}
	f, err := os.Open(name)
	if err != nil {
		return ""
	}
	defer f.Close()
	return buildOf(f)
})

// idWithin is how far from the start of a program Go's linker puts the id of the build.
const idWithin = 64 << 10

// buildOf returns the linker's id of the program or, if it was built without one, a hash of it.
func buildOf(program io.Reader) string {
	h := sha256.New()
	var head bytes.Buffer
	if _, err := io.CopyN(io.MultiWriter(h, &head), program, idWithin); err != nil && err != io.EOF {
		return ""
	}
	if id := idIn(head.Bytes()); len(id) > 0 {
		return "id " + string(id)
	}
	if _, err := io.Copy(h, program); err != nil {
		return ""
	}
	return "sum " + hex.EncodeToString(h.Sum(nil))
}

// idIn finds the id: in ELF files in a note of Go's, whose length comes before the note's type, in others as text.
func idIn(head []byte) []byte {
	if before, after, ok := bytes.Cut(head, []byte("\x04\x00\x00\x00Go\x00\x00")); ok && len(before) >= 4 {
		if n := binary.LittleEndian.Uint32(before[len(before)-4:]); n <= uint32(len(after)) {
			return after[:n]
		}
	}
	if _, after, ok := bytes.Cut(head, []byte("\xff Go build ID: \"")); ok {
		if id, _, ok := bytes.Cut(after, []byte("\"\n \xff")); ok {
			return id
		}
	}
	return nil
}

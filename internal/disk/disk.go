// Package disk keeps values in files for later runs of a program.
// It must not depend on what the values mean: to it they are bytes.
//
// A folder is only a cache: if anything fails, Get finds nothing and Put keeps nothing. Several processes may use one folder at once. A
// value is first written to a file of its own under another name, and has a checksum, so that Get never returns a part of it.
package disk

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"
)

const (
	// magic begins every file. Its number is the format's.
	magic      = "tenon\x00\x001"
	headerSize = len(magic) + 8 + sha256.Size
	// shards is how many parts a folder has. Each is bounded by itself, so that a Put looks at few files.
	shards = 64
	// fresh is how old the time of a file gets before a Get renews it.
	fresh = time.Hour
)

// Folder keeps values. The nil Folder keeps none.
type Folder struct {
	dir   string
	bound int64 // of a shard
	sys   system
	once  sync.Once
	sound bool
}

// Open returns the folder of that path, in which files take up to limit bytes. It is made when it is first used.
func Open(dir string, limit int64) *Folder {
	return &Folder{dir: dir, bound: limit / shards, sys: host{}}
}

// ready makes the folder and reports whether it may be used: whoever else can write to it could plant a value.
func (f *Folder) ready() bool {
	if f == nil {
		return false
	}
	f.once.Do(func() {
		if f.sys.mkdir(f.dir) != nil {
			return
		}
		st, err := f.sys.stat(f.dir)
		f.sound = err == nil && st.IsDir() && private(st)
	})
	return f.sound
}

// place returns the shard and the file of a key.
func (f *Folder) place(key string) (dir, file string) {
	sum := sha256.Sum256([]byte(key))
	dir = filepath.Join(f.dir, hex.EncodeToString([]byte{sum[0] % shards}))
	return dir, filepath.Join(dir, hex.EncodeToString(sum[:]))
}

// sumOf covers the key too, so that a file under another's name is none.
func sumOf(key string, value []byte) []byte {
	h := sha256.New()
	h.Write(binary.LittleEndian.AppendUint64(nil, uint64(len(key))))
	h.Write([]byte(key))
	h.Write(value)
	return h.Sum(nil)
}

// Get returns the value of key.
func (f *Folder) Get(key string) (value []byte, ok bool) {
	if !f.ready() {
		return nil, false
	}
	_, name := f.place(key)
	r, err := f.sys.open(name)
	if err != nil {
		return nil, false
	}
	all, err := io.ReadAll(io.LimitReader(r, f.bound+1)) // a foreign file may have any length
	st, statErr := r.Stat()
	if closeErr := r.Close(); err != nil || statErr != nil || closeErr != nil || len(all) < headerSize {
		return nil, false
	}
	value = all[headerSize:]
	head := all[len(magic):headerSize]
	if string(all[:len(magic)]) != magic || binary.LittleEndian.Uint64(head) != uint64(len(value)) ||
		string(head[8:]) != string(sumOf(key, value)) {
		return nil, false
	}
	if now := time.Now(); now.Sub(st.ModTime()) > fresh {
		_ = f.sys.touch(name, now) // without it the file goes earlier
	}
	return value, true
}

// Put keeps the value of key, in place of an older one. The values that were not used for longest make room.
func (f *Folder) Put(key string, value []byte) {
	size := int64(headerSize + len(value))
	if !f.ready() || size > f.bound {
		return
	}
	dir, name := f.place(key)
	if f.sys.mkdir(dir) != nil || !f.room(dir, size) {
		return
	}
	w, err := f.sys.create(dir)
	if err != nil {
		return
	}
	all := append(make([]byte, 0, size), magic...)
	all = binary.LittleEndian.AppendUint64(all, uint64(len(value)))
	all = append(append(all, sumOf(key, value)...), value...)
	_, err = w.Write(all)
	if closeErr := w.Close(); err != nil || closeErr != nil || f.sys.rename(w.Name(), name) != nil {
		_ = f.sys.remove(w.Name())
	}
}

// room removes files of a shard, oldest first, until another one of that size may be written, and reports whether it may. What processes
// that ended early have left is among them.
func (f *Folder) room(dir string, size int64) bool {
	list, err := f.sys.list(dir)
	if err != nil {
		return false
	}
	var files []fs.FileInfo
	for _, e := range list {
		if st, err := e.Info(); err == nil && st.Mode().IsRegular() { // else another process has removed it
			files = append(files, st)
			size += st.Size()
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, st := range files {
		if size <= f.bound {
			break
		}
		if err := f.sys.remove(filepath.Join(dir, st.Name())); err == nil || os.IsNotExist(err) {
			size -= st.Size()
		}
	}
	return size <= f.bound
}

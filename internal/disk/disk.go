// Package disk keeps values in files for later runs of a program. It must not depend on what the values mean: they are only bytes.
//
// A folder is only a cache: if anything fails, Get finds nothing and Put keeps nothing. Several processes may use one folder at once. A
// value has a checksum and is first written to a temporary file, so that Get never returns a part of it.
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
	// magic begins every file. Its digit is the version of the format.
	magic      = "tenon\x00\x001"
	headerSize = len(magic) + 8 + sha256.Size
	// shards is the number of parts of a folder. Each has its own bound, so that a Put looks at few files.
	shards = 64
	// fresh is the age of a file's time from which a Get renews it.
	fresh = time.Hour
	// unseen is the number of values that a Folder puts into a shard before it looks again what other processes put there.
	unseen = 32
)

// Folder keeps values. The nil Folder keeps none.
type Folder struct {
	dir   string
	bound int64 // of a shard
	sys   system
	once  sync.Once
	sound bool
	mu    sync.Mutex
	seen  map[string]usage // by a shard's folder
}

// usage is what a shard holds: at most that many bytes of files, but for those that other processes have put there. puts counts down to the
// next look at its files.
type usage struct {
	bytes int64
	puts  int
}

// Open returns the folder dir, whose files take up to limit bytes, or a few values more if several processes fill it at once. The folder is
// created at its first use.
func Open(dir string, limit int64) *Folder {
	return &Folder{dir: dir, bound: limit / shards, sys: host{}}
}

// ready creates the folder and reports whether it may be used: another user who can write to it could plant a value.
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

// sumOf returns the checksum of key and value. It covers the key, so that a file with another key's name is invalid.
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
		_ = f.sys.touch(name, now) // if it fails, the file is removed earlier
	}
	return value, true
}

// Put stores the value of key, in place of an older one. It removes the least recently used values to make room.
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

// room takes size bytes of a shard, or reports that it has no room for them.
func (f *Folder) room(dir string, size int64) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	u := f.seen[dir]
	ok := u.puts > 0 && u.bytes+size <= f.bound
	if !ok {
		u.bytes, ok = f.shrink(dir, size)
		u.puts = unseen
	}
	if u = (usage{u.bytes + size, u.puts - 1}); !ok {
		u = usage{}
	}
	if f.seen == nil {
		f.seen = map[string]usage{}
	}
	f.seen[dir] = u
	return ok
}

// shrink removes files of a shard, oldest first, until another one of that size may be written, and reports whether it may, and how many
// bytes are left. This also removes files that processes left when they ended early.
func (f *Folder) shrink(dir string, size int64) (used int64, ok bool) {
	list, err := f.sys.list(dir)
	if err != nil {
		return 0, false
	}
	var files []fs.FileInfo
	for _, e := range list {
		if st, err := e.Info(); err == nil && st.Mode().IsRegular() { // else another process has removed it
			files = append(files, st)
			used += st.Size()
		}
	}
	slices.SortFunc(files, func(a, b fs.FileInfo) int { return a.ModTime().Compare(b.ModTime()) })
	for _, st := range files {
		if used+size <= f.bound {
			break
		}
		if err := f.sys.remove(filepath.Join(dir, st.Name())); err == nil || os.IsNotExist(err) {
			used -= st.Size()
		}
	}
	return used, used+size <= f.bound
}

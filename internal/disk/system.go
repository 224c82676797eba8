package disk

import (
	"io"
	"io/fs"
	"os"
	"time"
)

// system is the file operations that a Folder uses.
type system interface {
	mkdir(dir string) error
	stat(name string) (fs.FileInfo, error)
	open(name string) (reader, error)
	create(dir string) (writer, error)
	rename(from, to string) error
	remove(name string) error
	list(dir string) ([]fs.DirEntry, error)
	touch(name string, t time.Time) error
}

type reader interface {
	io.ReadCloser
	Stat() (fs.FileInfo, error)
}

type writer interface {
	io.WriteCloser
	Name() string
}

// host is the operating system. What it makes is accessible to the user alone.
type host struct{}

func (host) mkdir(dir string) error                 { return os.MkdirAll(dir, 0o700) }
func (host) stat(name string) (fs.FileInfo, error)  { return os.Stat(name) }
func (host) open(name string) (reader, error)       { return os.Open(name) }
func (host) create(dir string) (writer, error)      { return os.CreateTemp(dir, "partial-*") }
func (host) rename(from, to string) error           { return os.Rename(from, to) }
func (host) remove(name string) error               { return os.Remove(name) }
func (host) list(dir string) ([]fs.DirEntry, error) { return os.ReadDir(dir) }
func (host) touch(name string, t time.Time) error   { return os.Chtimes(name, t, t) }

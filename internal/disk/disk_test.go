package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const roomy = 64 << 20

// inShard0 returns n keys of shard 0.
func inShard0(n int) (keys []string) {
	for i := 0; len(keys) < n; i++ {
		k := fmt.Sprint("key ", i)
		if dir, _ := Open("", 0).place(k); dir == "00" {
			keys = append(keys, k)
		}
	}
	return keys
}

func valueOf(key string) []byte { return bytes.Repeat([]byte(key+"\n"), 20) }

func (f *Folder) check(t *testing.T, key string, want bool) {
	t.Helper()
	v, ok := f.Get(key)
	if ok != want || ok && !bytes.Equal(v, valueOf(key)) {
		t.Errorf("%s: found %t, %d bytes; want found %t", key, ok, len(v), want)
	}
}

// files returns the regular files below dir.
func files(t *testing.T, dir string) (names []string, size int64) {
	t.Helper()
	err := filepath.WalkDir(dir, func(name string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		st, err := e.Info()
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		names, size = append(names, name), size+st.Size()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names, size
}

func TestPutGet(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a", "b")
	f := Open(dir, roomy)
	f.check(t, "k", false)
	f.Put("k", []byte("old"))
	f.Put("k", valueOf("k"))
	f.Put("", valueOf(""))
	f.check(t, "k", true)
	f.check(t, "", true)
	f.check(t, "other", false)
	Open(dir, roomy).check(t, "k", true)
	names, _ := files(t, dir)
	if len(names) != 2 {
		t.Errorf("files %v; want two", names)
	}
	for _, name := range append(names, dir, filepath.Dir(names[0])) {
		if st, err := os.Stat(name); err != nil || st.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s: %v, %v; want a file of the user alone", name, st.Mode(), err)
		}
	}
	var none *Folder
	none.Put("k", nil)
	none.check(t, "k", false)
}

func TestDamagedFilesAreIgnoredAndWrittenAnew(t *testing.T) {
	f := Open(t.TempDir(), roomy)
	f.Put("k", valueOf("k"))
	_, name := f.place("k")
	whole, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	try := func(what string, b []byte) {
		t.Helper()
		if err := os.WriteFile(name, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, ok := f.Get("k"); ok {
			t.Errorf("%s was taken", what)
		}
	}
	for n := range whole {
		try(fmt.Sprint("a file cut at ", n), whole[:n])
		b := bytes.Clone(whole)
		b[n] ^= 4
		try(fmt.Sprint("a file damaged at ", n), b)
	}
	try("a longer file", append(bytes.Clone(whole), 0))
	f.Put("l", valueOf("k"))
	_, other := f.place("l")
	b, err := os.ReadFile(other)
	if err != nil {
		t.Fatal(err)
	}
	try("another key's file", b)
	try("a foreign file", []byte("#!/bin/sh\n"))
	f.Put("k", valueOf("k"))
	f.check(t, "k", true)
	if err := errors.Join(os.Remove(name), os.Mkdir(name, 0o700)); err != nil {
		t.Fatal(err)
	}
	f.check(t, "k", false)
	f.Put("k", valueOf("k"))
	f.check(t, "k", false)
}

func TestOldestMakeRoom(t *testing.T) {
	keys := inShard0(4)
	size := int64(headerSize + len(valueOf(keys[0])) + 40) // room for the difference in length of keys
	f := Open(t.TempDir(), shards*3*size)
	now := time.Now()
	age := func(key string, hours int) {
		_, name := f.place(key)
		if err := os.Chtimes(name, now, now.Add(-time.Duration(hours)*time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	for i, k := range keys[:3] {
		f.Put(k, valueOf(k))
		age(k, 30-i)
	}
	f.check(t, keys[0], true) // in use
	f.Put(keys[3], valueOf(keys[3]))
	f.check(t, keys[0], true)
	f.check(t, keys[1], false)
	f.check(t, keys[2], true)
	f.check(t, keys[3], true)

	f.Put(keys[0], make([]byte, 4*size)) // too large for a shard
	f.check(t, keys[0], true)

	dir, _ := f.place(keys[0]) // a file that a killed process left counts too
	left := filepath.Join(dir, "partial-1")
	if err := errors.Join(os.WriteFile(left, make([]byte, 2*size), 0o600), os.Chtimes(left, now, now.Add(-time.Hour*90))); err != nil {
		t.Fatal(err)
	}
	f.Put(keys[1], valueOf(keys[1]))
	f.check(t, keys[1], true)
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the partial file is still there: %v", err)
	}
}

// counting counts how often the files of a shard are listed.
type counting struct {
	host
	lists int
}

func (s *counting) list(dir string) ([]fs.DirEntry, error) {
	s.lists++
	return s.host.list(dir)
}

// A folder lists a shard's files now and then, not at every Put, and still notices what others put there.
func TestShardsAreListedNowAndThen(t *testing.T) {
	keys := inShard0(4 * unseen)
	size := int64(headerSize + len(valueOf(keys[0])) + 40)
	f := Open(t.TempDir(), shards*3*unseen*size)
	s := &counting{}
	f.sys = s
	for _, k := range keys[:2*unseen] {
		f.Put(k, valueOf(k))
	}
	if s.lists != 2 {
		t.Errorf("%d puts listed the files %d times, want 2", 2*unseen, s.lists)
	}
	other := Open(f.dir, shards*3*unseen*size)
	for _, k := range keys[2*unseen : 3*unseen-4] {
		other.Put(k, valueOf(k))
	}
	for _, k := range keys[3*unseen-4:] {
		f.Put(k, valueOf(k))
	}
	dir, _ := f.place(keys[0])
	list, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var sum int64
	for _, e := range list {
		if st, err := e.Info(); err == nil {
			sum += st.Size()
		}
	}
	if bound := 3 * unseen * size; sum > bound || sum < bound*9/10 {
		t.Errorf("two folders over one directory leave %d bytes in a shard of %d", sum, bound)
	}
}

func TestFoldersThatCannotBeUsed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{file, filepath.Join(file, "below"), ""} {
		f := Open(dir, roomy)
		f.Put("k", valueOf("k"))
		f.check(t, "k", false)
	}
	dir := filepath.Join(t.TempDir(), "shared")
	if err := errors.Join(os.Mkdir(dir, 0o700), os.Chmod(dir, 0o777)); err != nil {
		t.Fatal(err)
	}
	f := Open(dir, roomy)
	f.Put("k", valueOf("k"))
	f.check(t, "k", false)
	if names, _ := files(t, dir); len(names) != 0 {
		t.Errorf("a folder that others can write to has %v", names)
	}
}

// faulty fails at one operation.
type faulty struct {
	host
	at, n int
	hit   string
}

var errPlanted = errors.New("planted")

func (s *faulty) fail(what string) error {
	s.n++
	if s.n-1 == s.at {
		s.hit = what
		return errPlanted
	}
	return nil
}

func (s *faulty) mkdir(dir string) error { return errors.Join(s.fail("mkdir"), s.host.mkdir(dir)) }

func (s *faulty) stat(name string) (fs.FileInfo, error) {
	if err := s.fail("stat"); err != nil {
		return nil, err
	}
	return s.host.stat(name)
}

func (s *faulty) open(name string) (reader, error) {
	if err := s.fail("open"); err != nil {
		return nil, err
	}
	r, err := s.host.open(name)
	return faultyReader{r, s}, err
}

func (s *faulty) create(dir string) (writer, error) {
	if err := s.fail("create"); err != nil {
		return nil, err
	}
	w, err := s.host.create(dir)
	return faultyWriter{w, s}, err
}

func (s *faulty) rename(from, to string) error {
	if err := s.fail("rename"); err != nil {
		return err
	}
	return s.host.rename(from, to)
}

func (s *faulty) remove(name string) error {
	if err := s.fail("remove"); err != nil {
		return err
	}
	return s.host.remove(name)
}

func (s *faulty) list(dir string) ([]fs.DirEntry, error) {
	if err := s.fail("list"); err != nil {
		return nil, err
	}
	return s.host.list(dir)
}

func (s *faulty) touch(name string, at time.Time) error {
	if err := s.fail("touch"); err != nil {
		return err
	}
	return s.host.touch(name, at)
}

type faultyReader struct {
	reader
	s *faulty
}

func (r faultyReader) Read(b []byte) (int, error) {
	if err := r.s.fail("read"); err != nil {
		return 0, err
	}
	return r.reader.Read(b)
}

func (r faultyReader) Stat() (fs.FileInfo, error) {
	if err := r.s.fail("stat of a file"); err != nil {
		return nil, err
	}
	return r.reader.Stat()
}

func (r faultyReader) Close() error {
	return errors.Join(r.s.fail("close after reading"), r.reader.Close())
}

type faultyWriter struct {
	writer
	s *faulty
}

// Write writes half of b when it fails, as a full disk does.
func (w faultyWriter) Write(b []byte) (int, error) {
	if err := w.s.fail("write"); err != nil {
		n, _ := w.writer.Write(b[:len(b)/2])
		return n, err
	}
	return w.writer.Write(b)
}

func (w faultyWriter) Close() error {
	return errors.Join(w.s.fail("close after writing"), w.writer.Close())
}

func TestFaultAtEveryOperation(t *testing.T) {
	keys := inShard0(3)
	limit := int64(shards * 2 * (headerSize + len(valueOf(keys[0])) + 40))
	seen := map[string]bool{}
	for at := 0; ; at++ {
		dir := t.TempDir()
		first := Open(dir, limit)
		first.Put(keys[0], valueOf(keys[0]))
		_, name := first.place(keys[0])
		old := time.Now().Add(-2 * fresh)
		if err := os.Chtimes(name, old, old); err != nil {
			t.Fatal(err)
		}
		s := &faulty{at: at}
		f := &Folder{dir: dir, bound: limit / shards, sys: s}
		for _, k := range keys { // a hit, then two misses, the second of which makes room
			if v, ok := f.Get(k); ok {
				if !bytes.Equal(v, valueOf(k)) {
					t.Fatalf("with a fault at %s, %s has a wrong value", s.hit, k)
				}
				continue
			}
			f.Put(k, valueOf(k))
		}
		if s.hit == "" {
			break
		}
		seen[s.hit] = true
		for _, k := range keys {
			if v, ok := Open(dir, limit).Get(k); ok && !bytes.Equal(v, valueOf(k)) {
				t.Errorf("after a fault at %s, %s has a wrong value", s.hit, k)
			}
		}
		names, size := files(t, dir)
		for _, name := range names {
			if strings.Contains(name, "partial") {
				t.Errorf("a fault at %s left %s", s.hit, name)
			}
		}
		if size > limit/shards {
			t.Errorf("after a fault at %s there are %d bytes in a shard of %d", s.hit, size, limit/shards)
		}
	}
	for _, what := range []string{"mkdir", "stat", "open", "read", "stat of a file", "close after reading", "touch", "list", "remove",
		"create", "write",
		"close after writing", "rename"} {
		if !seen[what] {
			t.Errorf("no fault at %s", what)
		}
	}
}

// An older value stays until the new one is whole.
func TestFailedPutKeepsTheOldValue(t *testing.T) {
	dir := t.TempDir()
	Open(dir, roomy).Put("k", valueOf("k"))
	for at := 0; ; at++ {
		s := &faulty{at: at}
		f := &Folder{dir: dir, bound: roomy / shards, sys: s}
		f.Put("k", []byte("new"))
		if s.hit == "" {
			break
		}
		Open(dir, roomy).check(t, "k", true)
	}
}

// The variables tell a child process of a test what to do.
const childDir, childSeed = "TENON_TEST_DISK", "TENON_TEST_DISK_SEED"

const childLimit = shards * 4 << 10

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		child(dir)
		return
	}
	os.Exit(m.Run())
}

// child uses a folder that other processes use at the same time.
func child(dir string) {
	var seed uint64
	fmt.Sscan(os.Getenv(childSeed), &seed)
	rng := rand.New(rand.NewPCG(seed, 1))
	found := 0
	keys := append(inShard0(40), "a", "b", "c")
	for range 1500 {
		f, k := Open(dir, childLimit), keys[rng.IntN(len(keys))]
		if v, ok := f.Get(k); !ok {
			f.Put(k, valueOf(k))
		} else if found++; !bytes.Equal(v, valueOf(k)) {
			fmt.Printf("%s has a wrong value\n", k)
			os.Exit(1)
		}
	}
	fmt.Println("found", found > 0)
}

func TestProcessesAtOnce(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "new")
	var cmds []*exec.Cmd
	var outs []*bytes.Buffer
	for i := range 8 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), childDir+"="+dir, fmt.Sprint(childSeed, "=", i))
		out := &bytes.Buffer{}
		cmd.Stdout, cmd.Stderr = out, out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		cmds, outs = append(cmds, cmd), append(outs, out)
	}
	for i, cmd := range cmds {
		if err := cmd.Wait(); err != nil || outs[i].String() != "found true\n" {
			t.Errorf("process %d: %v, %s", i, err, outs[i])
		}
	}
	f := Open(dir, childLimit) // concurrent writes may exceed the bound until the next Put
	f.Put("a", valueOf("a"))
	f.check(t, "a", true)
	names, _ := files(t, dir)
	for _, name := range names {
		if strings.Contains(name, "partial") {
			t.Errorf("%s was left", name)
		}
	}
}

func TestBuild(t *testing.T) {
	if out, err := exec.Command("go", "tool", "buildid", os.Args[0]).Output(); err == nil && len(out) > 1 {
		if got, want := Build(), "id "+strings.TrimSpace(string(out)); got != want {
			t.Errorf("this build is %q; want %q", got, want)
		}
	} else if b := Build(); !strings.HasPrefix(b, "sum ") {
		t.Errorf("this build is %q", b)
	}
	id := func(s string) string { return buildOf(strings.NewReader(s)) }
	if got := id("\x7fELF...\xff Go build ID: \"a/b/c\"\n \xffcode"); got != "id a/b/c" {
		t.Errorf("got %q", got)
	}
	if got := id("\x7fELF\x04\x00\x00\x00\x05\x00\x00\x00\x04\x00\x00\x00Go\x00\x00a/b/ccode"); got != "id a/b/c" {
		t.Errorf("got %q", got)
	}
	long := strings.Repeat("x", 2*idWithin)
	for _, s := range []string{"", "short", long, long + "\xff Go build ID: \"a\"\n \xff", "\xff Go build ID: \"\"\n \xff",
		"\xff\xff\xff\xff\x04\x00\x00\x00Go\x00\x00a", "\x04\x00\x00\x00Go\x00\x00a"} {
		if got := id(s); !strings.HasPrefix(got, "sum ") || got == id(s+"y") {
			t.Errorf("got %q", got)
		}
	}
}

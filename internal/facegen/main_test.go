package main

import (
	"bytes"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

// TestFaceIsCurrent: what the root package holds is what core's methods give, with no file left over.
func TestFaceIsCurrent(t *testing.T) {
	files, err := generate("../core")
	if err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob("../../zface*.go")
	if err != nil {
		t.Fatal(err)
	}
	for i, name := range names {
		names[i] = filepath.Base(name)
		if got, err := os.ReadFile(name); err != nil || !bytes.Equal(got, files[names[i]]) {
			t.Errorf("%s is out of date (%v): run go generate ./...", names[i], err)
		}
	}
	if want := slices.Sorted(maps.Keys(files)); !slices.Equal(names, want) {
		t.Errorf("the root package has %v\nwant %v", names, want)
	}
}

// TestWriteRemovesStale: a family that is gone takes its file along; what was written by hand stays.
func TestWriteRemovesStale(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{"zface_gone.go": marker, "zoo.go": "package tenon\n", "zface_add.go": marker + "old"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := write(dir, map[string][]byte{"zface_add.go": []byte(marker + "new")}); err != nil {
		t.Fatal(err)
	}
	names, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []string{filepath.Join(dir, "zface_add.go"), filepath.Join(dir, "zoo.go")}; !slices.Equal(names, want) {
		t.Errorf("left are %v, want %v", names, want)
	}
	if got, err := os.ReadFile(names[0]); err != nil || string(got) != marker+"new" {
		t.Errorf("the file holds %q, %v", got, err)
	}
}

package disk

import (
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// TestReadOnlyFolder runs as an ordinary user, since permissions do not bind root.
func TestReadOnlyFolder(t *testing.T) {
	const nobody = 65534
	if os.Getenv(childSeed) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^TestReadOnlyFolder$", "-test.v")
		cmd.Env = append(os.Environ(), childSeed+"=1")
		if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	dir, err := os.MkdirTemp("", "disk-*") // t.TempDir would belong to root
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	if os.Geteuid() == 0 {
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
		if err := syscall.Setuid(nobody); err != nil {
			t.Fatal(err)
		}
	}
	f := Open(dir, roomy)
	f.Put("k", valueOf("k"))
	shard, _ := f.place("k")
	for _, d := range []string{shard, dir} {
		if err := os.Chmod(d, 0o500); err != nil {
			t.Fatal(err)
		}
		defer os.Chmod(d, 0o700)
	}
	f = Open(dir, roomy)
	f.check(t, "k", true)
	for i := range 200 { // keys of this shard and of others
		f.Put(string(rune('a'+i)), valueOf("x"))
	}
	f.check(t, "k", true)
	if names, _ := files(t, dir); len(names) != 1 {
		t.Errorf("a folder that cannot be written has %d files; want 1", len(names))
	}
}

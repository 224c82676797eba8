package memviz

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev/internal/snapshot"
)

// recorded opens a snapshot that PyTorch wrote.
func recorded(t testing.TB, name string) io.Reader {
	t.Helper()
	f, err := os.Open(recordedPath(name))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

func recordedPath(name string) string {
	return filepath.Join("..", "internal", "snapshot", "testdata", name+".pickle.gz")
}

// torchReport is what PyTorch printed.
func torchReport(t *testing.T, name string) string {
	t.Helper()
	f, err := os.Open(filepath.Join("testdata", "torch_reports", name+".txt.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// sameText fails at the first line that differs. A newline at the end does not count: PyTorch's print adds one.
func sameText(t *testing.T, got, want string) {
	t.Helper()
	got, want = strings.TrimSuffix(got, "\n"), strings.TrimSuffix(want, "\n")
	if got == want {
		return
	}
	g, w := strings.Split(got, "\n"), strings.Split(want, "\n")
	for i := range w {
		if i >= len(g) || g[i] != w[i] {
			line := "nothing"
			if i < len(g) {
				line = g[i]
			}
			t.Fatalf("line %d of %d is\n%s\nPyTorch writes\n%s", i+1, len(w), line, w[i])
		}
	}
	t.Fatalf("%d lines; PyTorch writes %d", len(g), len(w))
}

// PyTorch's own text reports come out byte for byte.
func TestTorchReports(t *testing.T) {
	for _, name := range []string{"resnet50", "gpt2_amp_graph", "extra_expandable", "extra_streams"} {
		for kind, write := range map[string]func(io.Writer, io.Reader, string) error{
			"stats": WriteStats, "trace": WriteTrace, "segments": WriteSegments, "memory": WriteMemory,
		} {
			t.Run(name+"."+kind, func(t *testing.T) {
				var b bytes.Buffer
				if err := write(&b, recorded(t, name), name); err != nil {
					t.Fatal(err)
				}
				sameText(t, b.String(), torchReport(t, name+"."+kind))
			})
		}
	}
}

func TestTorchCompare(t *testing.T) {
	var b bytes.Buffer
	if err := WriteCompare(&b, recorded(t, "resnet50"), recorded(t, "gpt2_amp_graph"), "before", "after"); err != nil {
		t.Fatal(err)
	}
	sameText(t, b.String(), torchReport(t, "compare.resnet50.gpt2_amp_graph"))

	s, err := snapshot.Read(recorded(t, "gpt2_amp_graph"), snapshot.ReadOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Segments = s.Segments[:30]
	var first bytes.Buffer
	if err := s.Write(&first); err != nil {
		t.Fatal(err)
	}
	b.Reset()
	if err := WriteCompare(&b, &first, recorded(t, "gpt2_amp_graph"), "before", "after"); err != nil {
		t.Fatal(err)
	}
	sameText(t, b.String(), torchReport(t, "compare.gpt2_first30.gpt2_amp_graph"))
}

func TestPlainSizeText(t *testing.T) {
	for n, want := range map[uint64]string{0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 10<<20 + 1<<19: "10.5 MiB", 1023<<10 +
		1<<8: "1023 KiB", 1<<20 - 1: "1 MiB",
		1 << 50: "1 PiB", 822 << 20: "822 MiB", 1<<30 + 1<<29 + 1<<25: "1.53 GiB"} {
		if got := plainSizeText(n); got != want {
			t.Errorf("%d bytes are %q, want %q", n, got, want)
		}
	}
}

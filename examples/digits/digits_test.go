package main

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/xml"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/data"
	"tenon.dev/internal/cost"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// write writes text to a new file and returns the file's name.
func write(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

// Two epochs learn something, print the right lines, and draw the curves. A second run prints the same except for the speed.
func TestRun(t *testing.T) {
	svg := filepath.Join(t.TempDir(), "curves.svg")
	var outs [2]string
	speed := regexp.MustCompile(`, \d+ images/s`)
	for i := range outs {
		var out strings.Builder
		if err := run(t.Context(), []string{"-device", "sim", "-epochs", "2", "-svg", svg}, &out); err != nil {
			t.Fatal(err)
		}
		outs[i] = speed.ReplaceAllString(out.String(), ", N images/s")
	}
	if outs[0] != outs[1] {
		t.Errorf("two runs differ:\n%s%s", outs[0], outs[1])
	}
	form := `^Simulated GPU
epoch  1/2  loss \d\.\d{4}  test accuracy [\d.]+ %
epoch  2/2  loss \d\.\d{4}  test accuracy [\d.]+ %
test accuracy [5-8]\d\.\d %, N images/s, peak memory [\d.]+ MiB, Simulated GPU
$`
	if !regexp.MustCompile(form).MatchString(outs[0]) {
		t.Errorf("it printed\n%s", outs[0])
	}
	f, err := os.Open(svg)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	seen := map[string]int{}
	d := xml.NewDecoder(f)
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := token.(xml.StartElement); ok {
			seen[e.Name.Local]++
		}
	}
	if seen["svg"] != 1 || seen["polyline"] != 2 || seen["circle"] != 4 {
		t.Errorf("the picture has %v", seen)
	}
}

// With -compile the steps run as a graph and give the same bits.
func TestCompile(t *testing.T) {
	for _, device := range []string{"sim", "cpu"} {
		images, err := load("")
		if err != nil {
			t.Fatal(err)
		}
		train, _ := split(images)
		samples, err := table(train)
		if err != nil {
			t.Fatal(err)
		}
		sel, err := tenon.ParseSelector(device)
		if err != nil {
			t.Fatal(err)
		}
		learned := func(region *compile.Region) string {
			x, err := tenon.Open(sel)
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			net := network(x, 0)
			defer nn.Close(net)
			adam, err := optim.NewAdam(nn.Params(net), optim.AdamOpt{LR: 1e-3})
			if err != nil {
				t.Fatal(err)
			}
			defer adam.Close()
			loader, err := data.NewLoader(samples, data.LoaderOpt{BatchSize: 64, DropLast: true, Shuffle: true})
			if err != nil {
				t.Fatal(err)
			}
			around := scoped
			if region != nil {
				around = region.Do
			}
			out := ""
			for range 2 {
				loss, err := pass(t.Context(), x, around, net, adam, loader, newBar(io.Discard, "", 1))
				if err != nil {
					t.Fatal(err)
				}
				out += fmt.Sprintf("loss %x\n", loss)
			}
			if region != nil {
				s := region.Stats(x)
				if device == "sim" && s.Replays < 2*loader.Len()-8 {
					t.Errorf("%s: %+v", device, s)
				}
			}
			for name, p := range nn.Params(net) {
				b, err := x.Bytes(p.Tensor())
				if err != nil {
					t.Fatal(err)
				}
				out += fmt.Sprintf("%s %x\n", name, b)
			}
			return out
		}
		if want, got := learned(nil), learned(compile.New()); got != want {
			t.Errorf("%s: -compile learns something else", device)
		}
	}
}

// With the training labels shuffled there is nothing to learn.
func TestShuffledLabels(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-device", "cpu", "-epochs", "2", "-svg", "", "-shuffle-labels"}, &out); err != nil {
		t.Fatal(err)
	}
	last := regexp.MustCompile(`\ntest accuracy ([\d.]+) %`).FindStringSubmatch(out.String())
	if last == nil || len(last[1]) > 4 || last[1] >= "20" && len(last[1]) == 4 {
		t.Errorf("it printed\n%s", out.String())
	}
}

// Bad input leads to one sentence that names it.
func TestBadInput(t *testing.T) {
	row := strings.Repeat("0,", 64) + "1\n"
	good := strings.Repeat(row, 10)
	var packed strings.Builder
	z := gzip.NewWriter(&packed)
	if _, err := io.WriteString(z, good); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, want string
		args       []string
	}{
		{"device", "Invalid device string: 'tpu'", []string{"-device", "tpu"}},
		{"GPU", "device", []string{"-device", "cuda:99"}},
		{"size", "Invalid device string: 'sim:big'", []string{"-device", "sim:big"}},
		{"small device", "is too small for a batch of 1000 images; give a smaller -batch or another -device",
			[]string{"-device", "sim:4MiB", "-batch", "1000"}},
		{"tiny device", "is too small for a batch of 1 images; give another -device", []string{"-device", "sim:1MiB", "-batch", "1"}},
		{"batch", "a batch of 2000 needs more than the 1438 training images", []string{"-batch", "2000"}},
		{"no batch", "-batch is 0", []string{"-batch", "0"}},
		{"epochs", "-epochs is 0", []string{"-epochs", "0"}},
		{"flag", "flag provided but not defined: -fast", []string{"-fast"}},
		{"seed", `invalid value "x" for flag -seed`, []string{"-seed", "x"}},
		{"argument", `there is no argument "fast"`, []string{"fast"}},
		{"no file", "the images cannot be read: open", []string{"-data", "absent.csv"}},
		{"letters", `line 2: value 1, "x", is not a whole number`, []string{"-data", write(t, "a.csv", row+"x"+row[1:])}},
		{"pixel", "line 1: value 64, 17, is no pixel from 0 to 16",
			[]string{"-data", write(t, "b.csv", strings.Repeat("0,", 63)+"17,1\n")}},
		{"label", "line 1: value 65, 10, is no label from 0 to 9", []string{"-data", write(t, "c.csv", strings.Repeat("0,", 64)+"10\n")}},
		{"huge", "is no label from 0 to 9", []string{"-data", write(t, "d.csv", strings.Repeat("0,", 64)+"99999999999999999999\n")}},
		{"short", "line 3: a line has 64 pixels and a label, apart by commas, but the values here are 2",
			[]string{"-data", write(t, "e.csv", row+row+"1,2\n")}},
		{"empty", "holds 0 images", []string{"-data", write(t, "f.csv", "")}},
		{"cut", "is cut off or damaged after line", []string{"-data", write(t, "g.csv.gz", packed.String()[:packed.Len()-8])}},
		{"folder", "the images cannot be read: read ", []string{"-data", t.TempDir()}},
		{"long line", "line 2 has more than 65536 bytes", []string{"-data", write(t, "l.csv", row+strings.Repeat("0,", 40000))}},
		{"torn", "begins like a compressed file but is none", []string{"-data", write(t, "h.csv.gz", "\x1f\x8b")}},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := run(t.Context(), c.args, io.Discard)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Errorf("got %v, want %q", err, c.want)
			}
		})
	}
	if err := run(t.Context(), []string{"-device", "sim:4MiB", "-batch", "1", "-epochs", "1", "-data",
		write(t, "k.csv", strings.Repeat(row, 1000)), "-svg", ""}, io.Discard); err != nil {
		t.Errorf("a small batch, as the error of a small device says: %v", err)
	}
	var out strings.Builder
	err := run(t.Context(), []string{"-epochs", "1", "-device", "cpu", "-batch", "5", "-data", write(t, "i.csv", good), "-svg",
		"absent/curves.svg"}, &out)
	if err == nil || !strings.Contains(err.Error(), "the curves cannot be written") || !strings.Contains(out.String(), "\ntest accuracy ") {
		t.Errorf("a picture in an absent folder: %v, and it printed\n%s", err, out.String())
	}
	odd := "\ufeff" + strings.ReplaceAll(good, "\n", "\r\n") + "\r\n\n"
	if images, err := load(write(t, "m.csv", odd)); len(images) != 10 || err != nil {
		t.Errorf("with a byte order mark, carriage returns and empty lines there are %d images and %v", len(images), err)
	}
	if err := run(t.Context(), []string{"-data", write(t, "j.csv.gz", packed.String()), "-epochs", "1", "-batch", "4", "-device", "cpu",
		"-svg", ""}, io.Discard); err != nil {
		t.Errorf("a compressed file: %v", err)
	}
}

// A signal ends the run after a step, with only one sentence; earlier output stays.
func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out strings.Builder
	err := run(ctx, []string{"-device", "cpu", "-epochs", "3", "-svg", ""}, &out)
	if err == nil || err.Error() != "interrupted in epoch 1 of 3" || out.String() != "CPU\n" {
		t.Errorf("got %v, and it printed\n%s", err, out.String())
	}
}

// full is a file on a full disk.
type full struct{}

func (full) Write([]byte) (int, error) { return 0, errors.New("no space left on device") }

func TestFullDisk(t *testing.T) {
	err := run(t.Context(), []string{"-device", "cpu", "-epochs", "1", "-batch", "512", "-svg", ""}, full{})
	if err == nil || err.Error() != "the result cannot be printed: no space left on device" {
		t.Error(err)
	}
}

// Whatever the file of images, the reader fails only with one sentence that names the file.
func FuzzImages(f *testing.F) {
	row := strings.Repeat("0,", 64) + "1\n"
	for _, text := range []string{"", strings.Repeat(row, 5), row + "1,2", "\x1f\x8b\x08", "\ufeff" + row, row + "\r\n",
		strings.Repeat("16,", 64) + "x", "66\r" + row[1:]} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		var images []image
		var err error
		cost.Within(t, 2<<20+10_000*len(text), func() { images, err = read(bytes.NewReader(text), "a.csv") })
		if err != nil && (images != nil || !strings.Contains(err.Error(), "a.csv") || strings.ContainsAny(err.Error(), "\r\n")) {
			t.Errorf("%d images and %q", len(images), err)
		}
		for i, img := range images {
			if img.label < 0 || img.label > 9 || slices.Max(img.pixels[:]) > 1 || slices.Min(img.pixels[:]) < 0 {
				t.Fatalf("image %d is %v", i, img)
			}
		}
	})
}

// The bar shows only on a terminal.
func TestBar(t *testing.T) {
	var out strings.Builder
	b := newBar(&out, "epoch", 2)
	b.advance()
	b.clear()
	if out.Len() != 0 {
		t.Errorf("what is no terminal gets %q", out.String())
	}
	b = &bar{out: &out, title: "epoch", total: 2}
	b.advance()
	b.clear()
	if want := "\r\x1b[?7lepoch 1/2 [" + strings.Repeat("█", 15) + strings.Repeat("·", 15) + "]\x1b[?7h\r\x1b[K"; out.String() != want {
		t.Errorf("a terminal gets %q, want %q", out.String(), want)
	}
}

func TestHelp(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"-h"}, &out); !errors.Is(err, flag.ErrHelp) {
		t.Error(err)
	}
	for _, name := range []string{"device", "epochs", "batch", "seed", "data", "svg", "shuffle-labels", "compile"} {
		if !strings.Contains(out.String(), "-"+name) {
			t.Errorf("-%s is not listed in\n%s", name, out.String())
		}
	}
}

// Every fifth image is used only for testing.
func TestSplit(t *testing.T) {
	images, err := load("")
	if err != nil {
		t.Fatal(err)
	}
	train, test := split(images)
	if len(images) != 1797 || len(train) != 1438 || len(test) != 359 || test[0] != images[4] || train[4] != images[5] {
		t.Errorf("%d images are split into %d and %d", len(images), len(train), len(test))
	}
}

func TestReadable(t *testing.T) {
	for n, want := range map[int64]string{512: "0.5 KiB", 3 << 20: "3.0 MiB", 80 << 30: "80.0 GiB"} {
		if got := readable(n); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

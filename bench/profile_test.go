package bench

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/benchrun"
	"tenon.dev/internal/gpt2"
	"tenon.dev/internal/resnet"
	"tenon.dev/profile"
)

var profilesFlag = flag.String("profiles", "", "the folder for profiles of whole programs; without it those of small ones are taken")

// patience is the longest time for which the device is held.
const patience = 50 * time.Millisecond

// held calls f while the device is kept waiting, so that the work that f issues runs without gaps. The device waits at most for patience,
// since a full queue would wait for the device.
func held(t *testing.T, x *tenon.Exec, f func()) {
	t.Helper()
	dev := coreExec(x).Device()
	d := dev.Driver()
	issued := make(chan struct{})
	id := d.RegisterCallback(func() {
		select {
		case <-issued:
		case <-time.After(patience):
		}
	})
	defer d.UnregisterCallback(id)
	if err := d.Callback(dev.DefaultStream().Handle(), id); err != nil {
		t.Fatal(err)
	}
	f()
	close(issued)
	if err := x.Synchronize(); err != nil {
		t.Fatal(err)
	}
}

// profileOf returns a profile of f.
func profileOf(t *testing.T, x *tenon.Exec, f func()) *profile.Profile {
	t.Helper()
	profiler, err := x.Device().Profile()
	if err != nil {
		t.Fatal(err)
	}
	f()
	p, err := profiler.Stop()
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// profileWays are the ways to run a program that are profiled.
var profileWays = map[string]func(t *testing.T, x *tenon.Exec, step program) *profile.Profile{
	"eager": func(t *testing.T, x *tenon.Exec, step program) *profile.Profile {
		for range 4 {
			step.eager(t, x)
		}
		return profileOf(t, x, func() { held(t, x, func() { step.eager(t, x) }) })
	},
	"compiled": func(t *testing.T, x *tenon.Exec, step program) *profile.Profile {
		r := compile.New(compile.Opt{NoGraphs: true})
		run := func() {
			if err := r.Do(x, step); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			run()
		}
		return profileOf(t, x, func() { held(t, x, run) })
	},
	"graph": func(t *testing.T, x *tenon.Exec, step program) *profile.Profile {
		for range 4 {
			step.eager(t, x)
		}
		return profileOf(t, x, func() {
			again, done := step.graph(t, x)
			again()
			held(t, x, func() {
				for range 10 {
					again()
				}
			})
			done()
		})
	},
}

// TestProfiles profiles whole programs for docs/profiles.md. For each it writes NAME.profile for bench/profiles, NAME.full including
// memory, and the tables as NAME.txt and NAME.md.
func TestProfiles(t *testing.T) {
	folder, x := *profilesFlag, (*tenon.Exec)(nil)
	words, tokens, network, images := gpt2.Base(), 8, resnet.Base(), 64
	if folder != "" {
		x = onGPU(t)
	} else {
		var err error
		if x, err = tenon.Open(tenon.Sim(0)); err != nil {
			t.Fatal(err)
		}
		defer x.Close()
		words, tokens, network, images, folder = gpt2.Small(), 2, resnet.Small(), 2, t.TempDir()
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		t.Fatal(err)
	}
	language := func(x *tenon.Exec) (program, func(), error) {
		w, err := gpt2.NewTraining(x, words, tokens)
		return w.Step, w.Close, err
	}
	training := func(x *tenon.Exec) (program, func(), error) {
		w, err := resnet.NewTraining(x, network, images)
		return w.Step, w.Close, err
	}
	use := func(x *tenon.Exec) (program, func(), error) {
		w := resnet.NewInference(x, network, 1)
		return w.Step, w.Close, nil
	}
	var want []string
	for _, p := range []struct {
		name, op string // an operation that the table must contain
		open     func(x *tenon.Exec) (program, func(), error)
	}{
		{"gpt2.train.eager", "MatMul", language},
		{"gpt2.train.compiled", "Fused", language},
		{"resnet.train.compiled", "Conv2dWeightGrad (backward)", training},
		{"resnet.infer.1.eager", "BatchNormEval", use},
		{"resnet.infer.1.graph", "Conv2d", use},
		{"resnet.infer.1.compiled", "Conv2d", use},
	} {
		want = append(want, p.name)
		x.Scope(func(x *tenon.Exec) {
			if err := compile.Reset(x); err != nil {
				t.Fatal(err)
			}
			step, done, err := p.open(x)
			if err != nil {
				t.Fatal(err)
			}
			defer done()
			seen := profileWays[p.name[strings.LastIndexByte(p.name, '.')+1:]](t, x, step)
			writeProfile(t, filepath.Join(folder, p.name), seen, p.op)
		})
	}
	page, err := benchrun.ProfilePage(folder)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range regexp.MustCompile(`bench/profiles/(.*)\.profile\)`).FindAllStringSubmatch(string(page), -1) {
		got = append(got, m[1])
	}
	if !slices.Equal(got, want) {
		t.Errorf("the page has %q, want %q", got, want)
	}
	commit := "commit not recorded"
	if c := benchrun.Commit(); c != "" {
		commit = "commit " + c
	}
	for _, text := range []string{"| internal/resnet/model.go:", "| internal/gpt2/model.go:", "A replay of ", commit,
		"ResNet-50 on one image, as a graph\n"} {
		if !bytes.Contains(page, []byte(text)) {
			t.Errorf("the page lacks %q:\n%s", text, page)
		}
	}
	if bytes.Contains(page, []byte("was not timed")) || bytes.Contains(page, []byte("no times of their own")) {
		t.Errorf("a graph has no times:\n%s", page)
	}
}

// writeProfile writes the files of a profile, whose names begin with stem, and checks that its table contains op.
func writeProfile(t *testing.T, stem string, p *profile.Profile, op string) {
	t.Helper()
	name := filepath.Base(stem)
	p.Commit = benchrun.Commit()
	var table strings.Builder
	if err := p.WriteTable(&table, profile.ByOp, 50); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "  "+op+"\n") {
		t.Errorf("%s shows no %s:\n%s", name, op, table.String())
	}
	t.Logf("%s:\n%s", name, table.String())
	small := benchrun.Condense(p)
	if err := p.WriteTable(&table, profile.ByLine, 50); err != nil {
		t.Fatal(err)
	}
	for suffix, write := range map[string]func(b *bytes.Buffer) error{
		".profile": func(b *bytes.Buffer) error { return small.Write(b) },
		".full":    func(b *bytes.Buffer) error { return p.Write(b) },
		".txt":     func(b *bytes.Buffer) error { _, err := b.WriteString(table.String()); return err },
		".md":      func(b *bytes.Buffer) error { _, err := b.WriteString(benchrun.ProfileSection(name, small)); return err },
	} {
		var b bytes.Buffer
		if err := write(&b); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(stem+suffix, b.Bytes(), 0o666); err != nil {
			t.Fatal(err)
		}
	}
}

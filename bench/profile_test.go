package bench

import (
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/gpt2"
	"tenon.dev/profile"
)

var profilesFlag = flag.String("profiles", "", "the folder for profiles of whole programs; none is taken without it")

// TestProfiles writes the profiles of a step of GPT-2's training, eager and with fused kernels. Without a GPU they are those of a small model.
func TestProfiles(t *testing.T) {
	config, batch := gpt2.Base(), 8
	if *profilesFlag == "" {
		config, batch, *profilesFlag = gpt2.Small(), 2, t.TempDir()
	}
	x, err := open()
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	w, err := gpt2.NewTraining(x, config, batch)
	if err != nil {
		t.Fatal(err)
	}
	defer w.Close()
	for _, way := range []string{"eager", "fused"} {
		r := compile.New(compile.Opt{NoGraphs: true})
		step := func() {
			f := r.Do
			if way == "eager" {
				f = func(x *tenon.Exec, step func(x *tenon.Exec) error) (err error) {
					x.Scope(func(x *tenon.Exec) { err = step(x) })
					return err
				}
			}
			if err := f(x, w.Step); err != nil {
				t.Fatal(err)
			}
		}
		for range 4 {
			step()
		}
		profiler, err := x.Device().Profile()
		if err != nil {
			t.Fatal(err)
		}
		step()
		p, err := profiler.Stop()
		if err != nil {
			t.Fatal(err)
		}
		var table strings.Builder
		for _, by := range []profile.By{profile.ByOp, profile.ByLine} {
			if err := p.WriteTable(&table, by, 50); err != nil {
				t.Fatal(err)
			}
		}
		t.Logf("%s:\n%s", way, table.String())
		if !strings.Contains(table.String(), "MatMul") {
			t.Error("a step of GPT-2 shows no product")
		}
		f, err := os.Create(filepath.Join(*profilesFlag, "gpt2."+way+".profile"))
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Write(f); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}
}

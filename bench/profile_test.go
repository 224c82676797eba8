package bench

import (
	"bytes"
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

var profilesFlag = flag.String("profiles", "", "the folder for profiles of whole programs; without it that of a small one is taken")

// TestProfiles takes the profiles of a step of GPT-2's training, eager and with fused kernels.
func TestProfiles(t *testing.T) {
	config, batch, folder := gpt2.Base(), 8, *profilesFlag
	if folder == "" {
		config, batch, folder = gpt2.Small(), 2, t.TempDir()
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
	eager := func(x *tenon.Exec, step func(x *tenon.Exec) error) (err error) {
		x.Scope(func(x *tenon.Exec) { err = step(x) })
		return err
	}
	profileOf(t, x, w, eager, filepath.Join(folder, "gpt2.eager.profile"))
	profileOf(t, x, w, compile.New(compile.Opt{NoGraphs: true}).Do, filepath.Join(folder, "gpt2.fused.profile"))
}

// profileOf logs the table of a step that do runs, and writes its profile.
func profileOf(t *testing.T, x *tenon.Exec, w *gpt2.Training, do func(*tenon.Exec, func(*tenon.Exec) error) error, file string) {
	t.Helper()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 4 {
		must(do(x, w.Step))
	}
	profiler, err := x.Device().Profile()
	must(err)
	must(do(x, w.Step))
	p, err := profiler.Stop()
	must(err)
	var table strings.Builder
	must(p.WriteTable(&table, profile.ByOp, 50))
	t.Logf("%s:\n%s", filepath.Base(file), table.String())
	if !strings.Contains(table.String(), "MatMul") {
		t.Error("a step of GPT-2 shows no product")
	}
	var b bytes.Buffer
	must(p.Write(&b))
	must(os.WriteFile(file, b.Bytes(), 0o666))
}

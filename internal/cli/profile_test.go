package cli

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/testdevice"
)

func TestProfile(t *testing.T) {
	x := testdevice.Open(t, tenon.Sim(0))
	p, err := x.Device().Profile()
	if err != nil {
		t.Fatal(err)
	}
	x.Scope(func(x *tenon.Exec) { x.Exp(x.Zeros([]int{256}, tenon.Float32)) })
	prof, err := p.Stop()
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	name := filepath.Join(dir, "work.profile")
	f, err := os.Create(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(prof.Write(f), f.Close()); err != nil {
		t.Fatal(err)
	}
	for by, want := range map[string]string{"op": "  Exp\n", "line": "  cli/profile_test.go:21\n", "time": "  Exp(float32[256])\n",
		"module": "  (no module)\n"} {
		out, errs, exit := run("profile", name, "--by", by)
		if exit != 0 || errs != "" || !strings.Contains(out, want) {
			t.Errorf("by %s: status %d: %s%s", by, exit, errs, out)
		}
	}
	if out, _, _ := run("profile", name, "--rows", "1"); !strings.Contains(out, "rows more\n") {
		t.Errorf("one row:\n%s", out)
	}
	page, trace, pprof := filepath.Join(dir, "p.html"), filepath.Join(dir, "p.json"), filepath.Join(dir, "p.pb.gz")
	if out, errs, exit := run("profile", name, "--html", page, "--trace", trace, "--pprof", pprof); exit != 0 || out+errs != "" {
		t.Errorf("status %d: %s%s", exit, out, errs)
	}
	if text, err := os.ReadFile(page); err != nil || !strings.Contains(string(text), "<title>tenon profile</title>") {
		t.Errorf("the page: %v", err)
	}
	if text, err := os.ReadFile(trace); err != nil || !json.Valid(text) {
		t.Errorf("the trace: %v", err)
	}
	if text, err := os.ReadFile(pprof); err != nil || !strings.HasPrefix(string(text), "\x1f\x8b") {
		t.Errorf("the pprof profile: %v", err)
	}
	for _, args := range [][]string{{"profile", filepath.Join(dir, "none")}, {"profile", trace}} {
		if out, errs, exit := run(args...); exit != 1 || out != "" || strings.Count(errs, "\n") != 1 {
			t.Errorf("%v: status %d: %s%s", args, exit, out, errs)
		}
	}
}

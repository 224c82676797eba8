package cli

import (
	"flag"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
	"tenon.dev/kernel"
)

// victim makes TestBisectVictim a program that goes wrong.
var victim = flag.String("victim", "", "what goes wrong in TestBisectVictim: bits, fused, again, always or nothing")

// TestBisectVictim is the command that the tests of tenon compile bisect run.
func TestBisectVictim(t *testing.T) {
	if *victim == "" {
		t.Skip("the tests of bisect run this one, as a process that fails")
	}
	t.Setenv("TENON_KERNEL_CACHE", "off") // or a later run would find the kernel with the planted error
	x, err := tenon.Open(tenon.Sim(1 << 28))
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	a := tenon.From(x, make([]float32, 64), 64)
	run := func(x *tenon.Exec) (got [3]float32) {
		for i, y := range []*tenon.Tensor{
			x.AddS(x.MulS(a, 2), 1),
			x.Neg(x.Exp(a)), // the planted line
			x.Abs(x.SubS(a, 3)),
		} {
			v, err := tenon.Read[float32](x, y)
			if err != nil {
				t.Fatal(err)
			}
			got[i] = v[0]
		}
		return got
	}
	want := run(x) // Exp's own kernel is loaded from now on, so only a fused kernel is built with the planted error
	if *victim == "bits" {
		build := kernels.Exp.Build
		kernels.Exp.Build = func(k *kernel.Builder, c dtype.DType, in, s []kernels.Num) []kernels.Num {
			return build(k, c, build(k, c, in, s), s)
		}
	}
	r := compile.New()
	for range 4 {
		err := r.Do(x, func(x *tenon.Exec) error {
			if got := run(x); got != want {
				t.Errorf("got %v, want %v", got, want)
			}
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	w := x.Ones([]int{64}, tenon.Float32).SetRequiresGrad(true)
	f := compile.Func(func(x *tenon.Exec) *tenon.Tensor { return x.Sum(x.Square(x.Exp(x.Mul(a, w))), nil) })
	if err := x.Backward(f.Call(x)); err != nil {
		t.Fatal(err)
	}
	again := f.Stats(x).Recomputed > 0
	if s := r.Stats(x); *victim == "always" || *victim == "again" && again || *victim == "fused" && s.Fused > 2*s.Runs {
		t.Errorf("it fails: %v", s)
	}
}

func bisect(what string) (out, errs string, exit int) {
	return run("compile", "bisect", "--", os.Args[0], "-test.run=^TestBisectVictim$", "-victim="+what)
}

func TestCompileBisect(t *testing.T) {
	out, errs, exit := bisect("fused")
	if exit != 0 || !strings.Contains(errs, "TENON_COMPILE_GROUPS=") {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	first := "first failure with group 2; it passes with 1\nkernel exp_neg"
	if !strings.Contains(errs, "the search goes on") || !strings.Contains(out, first) {
		t.Errorf("it does not find the second kernel:\n%s%s", errs, out)
	}
	out, errs, exit = bisect("bits")
	if exit != 0 || strings.Contains(errs, "TENON_COMPILE_GROUPS=") {
		t.Fatalf("exit status %d: %s", exit, errs)
	}
	text, err := os.ReadFile("bisect_test.go")
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(text), "// the planted"+" line")
	line := "bisect_test.go:" + strconv.Itoa(strings.Count(before, "\n")+1)
	for _, want := range []string{"a kernel gives other bits than its calls do one by one\nelement 0 of output 0 of Neg at ",
		"kernel exp_neg", line, "Exp{"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s%s", want, errs, out)
		}
	}
	again, errs, exit := bisect("again")
	if exit != 0 || !strings.Contains(again, "values that are computed again differ") || strings.Contains(errs, "TENON_COMPILE_GROUPS=") {
		t.Errorf("exit status %d: %s%s", exit, errs, again)
	}
	page, err := os.ReadFile("../../docs/compile.md")
	if err != nil {
		t.Fatal(err)
	}
	if shown := regexp.MustCompile(`[^ ]*bisect_test.go:[0-9]+`).ReplaceAllString(out, "train.go:31"); !strings.Contains(string(page),
		"```text\n"+shown+"```") {
		t.Errorf("docs/compile.md does not show\n%s", shown)
	}
	for what, want := range map[string]string{"always": "without compile too", "nothing": "passes with compile"} {
		if _, errs, exit := bisect(what); exit != 1 || !strings.Contains(errs, want) {
			t.Errorf("%s: exit status %d: %s", what, exit, errs)
		}
	}
	if _, errs, exit := run("compile", "bisect", "/no/such/command"); exit != 1 ||
		!strings.Contains(errs, `cannot run "/no/such/command": no such file or directory`) {
		t.Errorf("no command: exit status %d: %s", exit, errs)
	}
}

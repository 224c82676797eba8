package compile_test

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

// Many recordings of the same operations end in one warning: of sizes where these differ, and else of the option that changed, with its
// line.
func TestManyRecordingsWarnOfWhatDiffers(t *testing.T) {
	for _, c := range []struct {
		name string
		run  func(x *tenon.Exec, n int) *tenon.Tensor
		want []string
	}{
		{"sizes", func(x *tenon.Exec, n int) *tenon.Tensor { return x.Exp(x.Ones([]int{n + 1, 3}, tenon.Float32)) },
			[]string{"We have observed 3 distinct sizes"}},
		{"operands", func(x *tenon.Exec, n int) *tenon.Tensor { return x.Exp(x.Arange(0, float64(n+1), 1, tenon.Float32)) },
			[]string{"We have observed 3 distinct sizes"}},
		{"option", func(x *tenon.Exec, n int) *tenon.Tensor {
			return x.Exp(x.Sum(x.Ones([]int{3, 3, 3, 3}, tenon.Float32), []int{n}))
		},
			[]string{"3 graphs of the same operations on the same sizes", "list=[0]", "list=[2]", "variants_test.go:"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			old := slog.Default()
			slog.SetDefault(slog.New(slog.NewTextHandler(&out, nil)))
			defer slog.SetDefault(old)
			x := open(t)
			r := compile.New(compile.Opt{DynamicLimit: 2})
			for n := range 4 {
				for range 2 {
					var y *tenon.Tensor
					must(t, r.Do(x, func(x *tenon.Exec) error { y = x.Keep(c.run(x, n)); return nil }))
					y.Close()
				}
				if n == 1 && out.Len() > 0 {
					t.Errorf("two recordings are within the limit: %s", &out)
				}
			}
			got := out.String()
			if strings.Count(got, "level=WARN") != 1 {
				t.Errorf("not one warning: %s", got)
			}
			for _, want := range c.want {
				if !strings.Contains(got, want) {
					t.Errorf("%q is not in %s", want, got)
				}
			}
		})
	}
}

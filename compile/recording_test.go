package compile_test

import (
	"crypto/sha256"
	"fmt"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
)

// A recording that fails at any call, and the run in its place, read what they should.
func TestRecordingFails(t *testing.T) {
	x, d := openFailing(t)
	const rows, columns = 40, 25
	want := ""
	retried := 0
	for n, done := 0, false; !done; n++ {
		live := core.LiveStorages()
		must(t, x.Device().EmptyCache())
		r := compile.New()
		x.Scope(func(x *tenon.Exec) {
			a := x.Reshape(x.Arange(rows*columns, tenon.Float64), rows, columns)
			step := func() (out string, err error) {
				var sum *tenon.Tensor
				err = r.Do(x, func(x *tenon.Exec) error {
					first := x.AddS(a, 1)
					if err := compile.Break(x); err != nil {
						return err
					}
					second := x.Contiguous(x.Transpose(first, 0, 1)) // the last use of first
					first.Close()
					third := x.Contiguous(x.Transpose(x.MulS(second, 2), 0, 1))
					sum = x.Keep(x.Mul(third, x.Sum(second, nil)))
					return nil
				})
				if err != nil {
					return "", err
				}
				defer sum.Close()
				b, err := x.Bytes(sum)
				return fmt.Sprintf("%x", sha256.Sum256(b)), err
			}
			first, err := step()
			must(t, err)
			if want == "" {
				want = first
			}
			if first != want {
				t.Fatal("the first run differs")
			}
			d.Arm(n, 0)
			out, err := step()
			method, code := d.Fired()
			d.Arm(0, 0)
			done = n > 0 && method == ""
			if err == nil && out != want {
				t.Errorf("call %d, %s %v: the result differs", n, method, code)
			}
			if err == nil && method != "" {
				retried++
			}
			for range 2 {
				if out, err := step(); err != nil || out != want {
					t.Errorf("call %d, %s %v: afterwards %v, and the result is right: %v", n, method, code, err, out == want)
				}
			}
		})
		must(t, compile.Reset(x))
		if left := core.LiveStorages() - live; left > 0 {
			t.Fatalf("call %d: %d storages are left", n, left)
		}
	}
	if retried == 0 {
		t.Error("no recording failed")
	}
}

package ptx

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"tenon.dev/internal/approx"
	"tenon.dev/internal/kir"
)

// An approximate instruction on a constant gives what the device would give, not what the assembler would put there.
func TestApproximateConstants(t *testing.T) {
	const arg = 0xc3160000 // -150, whose correctly rounded reciprocal is another number
	x := math.Float32frombits(arg)
	for _, c := range []struct {
		op, instruction string
		want            float32
	}{{"exp2", "ex2.approx.ftz.f32", approx.Exp2(x)}, {"rcp", "rcp.approx.ftz.f32", approx.Reciprocal(x)}} {
		for _, constant := range []bool{true, false} {
			operand := "v2 = load.f32 v0[v1]"
			if constant {
				operand = fmt.Sprintf("v2 = const.f32 0x%x", arg)
			}
			ps, err := kir.Parse([]byte(fmt.Sprintf(`kernel "k" threads 32 fixed
param0 "y" buffer f32
{
  v0 = param 0
  v1 = const.i64 0
  %s
  v3 = %s.f32 v2
  store.f32 v0[v1], v3
}
`, operand, c.op)))
			if err != nil {
				t.Fatal(err)
			}
			text, err := Compile(ps, Target{Major: 8})
			if err != nil {
				t.Fatal(err)
			}
			bits := fmt.Sprintf("0f%08X", math.Float32bits(c.want))
			if got := strings.Contains(string(text), bits); got != constant {
				t.Errorf("%s of a constant %v: the text has %s: %v", c.op, constant, bits, got)
			}
			if got := strings.Contains(string(text), c.instruction); got == constant {
				t.Errorf("%s of a constant %v: the text has %s: %v", c.op, constant, c.instruction, got)
			}
		}
	}
}

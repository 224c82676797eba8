package kernel_test

import (
	"strings"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// TestExactConversions: all floating-point types hold integers of 8 bits, so a conversion of one from type to type starts from the integer.
func TestExactConversions(t *testing.T) {
	for _, c := range []struct {
		of    dtype.DType
		via   []dtype.DType
		exact bool
	}{
		{dtype.Int8, []dtype.DType{dtype.BFloat16, dtype.Float32}, true},
		{dtype.Uint8, []dtype.DType{dtype.Float32, dtype.Float16, dtype.Float64, dtype.BFloat16}, true},
		{dtype.Int8, []dtype.DType{dtype.Float16, dtype.Int32, dtype.Float32}, false},
		{dtype.Int16, []dtype.DType{dtype.BFloat16, dtype.Float32}, false},
		{dtype.Bool, []dtype.DType{dtype.BFloat16, dtype.Float32}, false},
		{dtype.Float16, []dtype.DType{dtype.BFloat16, dtype.Float32}, false},
	} {
		p, err := kernel.Build("k", func(k *kernel.Builder) {
			v := k.Buffer("b", c.of).Load(k.I32(0))
			for _, via := range c.via {
				v = v.Convert(via)
			}
			k.Buffer("to", v.Type()).Store(k.I32(0), v)
		}).Program()
		if err != nil {
			t.Fatal(err)
		}
		text := string(kir.Print(p))
		var loaded, last string
		for _, line := range strings.Split(text, "\n") {
			if w := strings.Fields(line); len(w) > 3 && strings.HasPrefix(w[2], "load") {
				loaded = w[0]
			} else if len(w) > 3 && strings.HasPrefix(w[2], "cvt") {
				last = w[3]
			}
		}
		if loaded == "" || last == "" || (last == loaded) != c.exact {
			t.Errorf("%v by %v: the last conversion is of %q, and %q was loaded:\n%s", c.of, c.via, last, loaded, text)
		}
	}
}

package conformance

import (
	"encoding/json"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/internal/recorded"
)

// autocastCall is a call under autocast to float16 as PyTorch's own autocast tests make it, and what type came out, recorded from PyTorch 2.11 on an
// NVIDIA GPU (testdata/autocast.json).
type autocastCall struct {
	List, Op string
	Args     []any
	Out      string `json:"out_dtype"`
}

// autocastNames are the registry's names of operations that the calls name otherwise.
var autocastNames = map[string]string{
	"__eq__": "eq", "__ge__": "ge", "__gt__": "gt", "__le__": "le", "__lt__": "lt", "__ne__": "ne", "__add__": "add", "__div__": "div", "__mul__": "mul",
	"__matmul__": "matmul", "__pow__": "pow", "nll_loss2d": "nn.functional.nll_loss",
}

// autocastArg makes an argument: tensors hold ones, or zeros where they are indexes; numbers are written as strings.
func autocastArg(t *testing.T, v any) recorded.Value {
	switch v := v.(type) {
	case map[string]any:
		d, ok := dtype.Parse(v["t"].(string))
		if !ok {
			t.Fatalf("unknown type %v", v["t"])
		}
		r := &recorded.Tensor{DType: d, TypeName: d.String(), Shape: []int{}}
		for _, n := range v["shape"].([]any) {
			r.Shape = append(r.Shape, int(n.(float64)))
		}
		r.Strides = make([]int, len(r.Shape))
		step := 1
		for i := len(r.Shape) - 1; i >= 0; i-- {
			r.Strides[i] = step
			step *= r.Shape[i]
		}
		r.Data = make([]byte, r.Elements()*d.Size())
		return r
	case []any:
		l := make(recorded.List, len(v))
		for i := range v {
			l[i] = autocastArg(t, v[i])
		}
		return l
	case string:
		if n, err := strconv.ParseInt(v, 10, 64); err == nil {
			return n
		}
		if f, err := strconv.ParseFloat(v, 64); err == nil {
			return f
		}
		if b, err := strconv.ParseBool(v); err == nil {
			return b
		}
		return v
	}
	t.Fatalf("unknown argument %v", v)
	return nil
}

// TestAutocast compares the types of results under autocast with PyTorch's, for all operations that are offered.
func TestAutocast(t *testing.T) {
	text, err := os.ReadFile("testdata/autocast.json")
	if err != nil {
		t.Fatal(err)
	}
	var calls []autocastCall
	if err := json.Unmarshal(text, &calls); err != nil {
		t.Fatal(err)
	}
	x := open(t).Autocast(tenon.Float16)
	offered := 0
	for i, call := range calls {
		name := call.Op
		if n := autocastNames[name]; n != "" {
			name = n
		}
		if registry[name] == nil {
			name = "nn.functional." + name
		}
		if registry[name] == nil {
			continue
		}
		c := &recorded.Case{Op: name, Kwargs: recorded.Dict{}}
		for j, v := range call.Args {
			if j == 0 {
				c.Input = autocastArg(t, v)
			} else {
				c.Args = append(c.Args, autocastArg(t, v))
			}
		}
		offered++
		var got string
		err := tenon.Try(func() {
			x.Scope(func(x *tenon.Exec) {
				a := newArgs(x, c)
				if power, number := a.get(1, "exponent").(float64); number && name == "pow" {
					got = x.PowS(a.tensor(0, "input"), power).DType().String()
					return
				}
				got = tensorsOf(registry[name](x, a))[0].DType().String()
			})
		})
		if want, refused := strings.CutPrefix(call.Out, "error: "); refused {
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("%d %s: got %s, %v; want the error %q", i, call.Op, got, err, want)
			}
			continue
		}
		if err != nil || got != call.Out {
			t.Errorf("%d %s of %s: got %s, %v; want %s", i, call.Op, fmt.Sprint(call.Args), got, err, call.Out)
		}
	}
	if offered < 76 {
		t.Errorf("only %d of %d calls are offered", offered, len(calls))
	}
	t.Logf("%d of %d calls", offered, len(calls))
}

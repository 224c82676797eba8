package conformance

import (
	"strconv"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/dtype"
	"tenon.dev/internal/recorded"
)

// autocastCall is a call under autocast to float16 from PyTorch's autocast tests, with the type of its result, recorded from PyTorch 2.11
// on an NVIDIA GPU (testdata/autocast.json).
type autocastCall struct {
	List, Op string
	Args     []any
	Out      string `json:"out_dtype"`
}

// autocastNames are the registry's names of operations that have other names in the calls.
var autocastNames = map[string]string{
	"__eq__": "eq", "__ge__": "ge", "__gt__": "gt", "__le__": "le", "__lt__": "lt", "__ne__": "ne", "__add__": "add",
	"__div__": "div", "__mul__": "mul",
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

// runAs returns the type in which a list's operations run under autocast to low.
func runAs(list string, low tenon.DType) tenon.DType {
	if strings.HasSuffix(list, "_fp16") {
		return low
	}
	return tenon.Float32
}

// TestAutocast checks all calls in the registry, on the device that -device names; TestCUDA has them by list.
func TestAutocast(t *testing.T) {
	x := open(t)
	offered, calls := 0, autocastCalls(t, "")
	for _, call := range calls {
		if call.registered() == "" {
			continue
		}
		offered++
		if call.List == "banned" {
			continue
		}
		if err := tenon.Try(func() {
			x.Scope(func(x *tenon.Exec) { call.check(t, x, tenon.Float16, runAs(call.List, tenon.Float16)) })
		}); err != nil {
			t.Errorf("%s: %v", call.Op, err)
		}
	}
	if offered != 98 {
		t.Errorf("%d of %d calls are offered, want 98", offered, len(calls))
	}
}

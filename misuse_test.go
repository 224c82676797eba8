package tenon_test

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/cuda"
	"tenon.dev/dtype"
	"tenon.dev/fault"
	"tenon.dev/kernel"
)

// walk calls functions of the public API by reflection with arguments that are wrong in some way. A call may succeed or be refused by a
// *fault.Error with a sentence, a kind and, where it panics, the operation and a line; anything else fails the test.
type walk struct {
	t      testing.TB
	rand   *rand.Rand
	x      *tenon.Exec
	other  *tenon.Exec // on another device
	values map[reflect.Type][]value
	// said collects the error messages, for a person to read.
	said map[string]string
	// told are the findings reported so far.
	told map[string]bool
	// judged has the errors judged since the outermost call: the error of a call inside a callback also comes out of the call that got the
	// callback, and a capture keeps a copy of it.
	judged map[string]bool
	// again opens a new device after a call has lost the old one, for instance by an index out of range.
	again func() *tenon.Exec
	// few asks for fewer calls, on devices where they are slow.
	few bool
}

// value is an argument and the function that makes it.
type value struct {
	name string
	make func(x *tenon.Exec) any
	// wrong says that a call with this argument must not succeed.
	wrong bool
}

func good(name string, v any) value {
	return value{name: name, make: func(*tenon.Exec) any { return v }}
}

func bad(name string, v any) value {
	return value{name: name, make: func(*tenon.Exec) any { return v }, wrong: true}
}

// profiles are the shapes and types of tensors in calls with valid arguments.
var profiles = []struct {
	name  string
	shape []int
	dt    tenon.DType
}{
	{"matrix", []int{2, 2}, tenon.Float32}, {"vector", []int{3}, tenon.Float32}, {"image", []int{2, 2, 3, 3}, tenon.Float32},
	{"number", nil, tenon.Float64},
	{"integers", []int{2, 2}, tenon.Int64}, {"complex", []int{2, 2}, tenon.Complex64}, {"empty", []int{0, 2}, tenon.Float32},
	{"batch", []int{2, 2, 2}, tenon.BFloat16},
	{"truth", []int{2, 2}, tenon.Bool}, {"no classes", []int{3, 0}, tenon.Float32},
}

func newWalk(t testing.TB, x, other *tenon.Exec) *walk {
	before := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // captures of functions that do nothing log warnings
	t.Cleanup(func() { slog.SetDefault(before) })
	w := &walk{t: t, rand: rand.New(rand.NewPCG(1, 2)), x: x, other: other, values: map[reflect.Type][]value{}, said: map[string]string{},
		told: map[string]bool{}}
	tensor := func(name string, f func(x *tenon.Exec) any, wrong bool) value { return value{name, f, wrong} }
	var tensors []value
	for _, p := range profiles {
		tensors = append(tensors, tensor(p.name, func(x *tenon.Exec) any { return x.Ones(p.shape, p.dt) }, false))
	}
	tensors = append(tensors,
		tensor("nil", func(*tenon.Exec) any { return (*tenon.Tensor)(nil) }, true),
		tensor("zero", func(*tenon.Exec) any { return new(tenon.Tensor) }, true),
		tensor("closed", func(x *tenon.Exec) any { a := x.Ones([]int{2, 2}, tenon.Float32); a.Close(); return a }, true),
		tensor("foreign", func(*tenon.Exec) any {
			_ = other.Device().SetMemoryFraction(1) // the walk calls it too and may have lowered it
			return other.Ones([]int{2, 2}, tenon.Float32)
		}, true),
		tensor("expanded", func(x *tenon.Exec) any { return x.Expand(x.Ones([]int{1}, tenon.Float32), 2, 2) }, false),
		tensor("leaf", func(x *tenon.Exec) any { return x.Ones([]int{2, 2}, tenon.Float32).SetRequiresGrad(true) }, false),
		tensor("row", func(x *tenon.Exec) any { return x.Ones([]int{1, 7}, tenon.Float32) }, false),
		tensor("deep", func(x *tenon.Exec) any { return x.Ones([]int{1, 2, 1, 2, 1, 2, 1}, tenon.Float32) }, false),
		tensor("host number", func(x *tenon.Exec) any { return x.Host().Ones(nil, tenon.Float64) }, false),
		tensor("host matrix", func(x *tenon.Exec) any { return x.Host().Ones([]int{2, 2}, tenon.Float32) }, false),
		tensor("far index", func(x *tenon.Exec) any { return x.Full([]int{2, 2}, 1e9, tenon.Int64) }, false),
	)
	w.add((*tenon.Tensor)(nil), tensors...)
	var lists []value
	for _, v := range tensors {
		lists = append(lists, tensor("list of "+v.name, func(x *tenon.Exec) any {
			return []*tenon.Tensor{v.make(x).(*tenon.Tensor)}
		}, v.wrong))
	}
	w.add([]*tenon.Tensor(nil), append(lists[:len(profiles):len(profiles)],
		append(lists[len(profiles):], good("nil", []*tenon.Tensor(nil)), good("none", []*tenon.Tensor{}))...)...)
	w.add(0, good("0", 0), good("1", 1), good("-1", -1), good("2", 2), good("7", 7), good("-9", -9), good("large", 1<<32),
		good("max", math.MaxInt), good("min", math.MinInt))
	w.add(int64(0), good("0", int64(0)), good("3", int64(3)), good("-3", int64(-3)), good("max", int64(math.MaxInt64)),
		good("min", int64(math.MinInt64)))
	w.add(uint64(0), good("0", uint64(0)), good("7", uint64(7)), good("max", uint64(math.MaxUint64)))
	w.add(0.0, good("0.5", 0.5), good("0", 0.0), good("-1", -1.0), good("NaN", math.NaN()), good("Inf", math.Inf(1)), good("large", 1e10),
		good("huge", 1e300))
	w.add((*tenon.Scalar)(nil), append(slices.Clone(w.of(reflect.TypeFor[float64]())), good("left out", nil), good("1", 1),
		good("text", "text"))...)
	w.add(complex(0, 0), good("i", 1i), good("0", 0i), good("NaN", complex(math.NaN(), math.Inf(1))))
	w.add(false, good("false", false), good("true", true))
	w.add("", good("empty", ""), good("nonsense", "nonsense\x00"))
	w.add([]int(nil), good("nil", []int(nil)), good("0", []int{0}), good("2 2", []int{2, 2}), good("0 1", []int{0, 1}),
		good("-1", []int{-1}), good("none", []int{}), good("9", []int{9}),
		good("twice", []int{1, 1}), good("negative", []int{-5, 3}), good("max", []int{math.MaxInt}), good("min", []int{math.MinInt, 2}),
		good("huge", []int{1 << 60}), good("large", []int{1 << 32}),
		good("many", []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1}), good("zero", []int{0, 0, 0, 0}),
		good("round", []int{math.MaxInt, math.MaxInt, 2}))
	w.add([2]int{}, good("1", [2]int{1, 1}), good("0", [2]int{}), good("2", [2]int{2, 2}), good("-1", [2]int{-1, 1}),
		good("max", [2]int{math.MaxInt, math.MaxInt}), good("min", [2]int{math.MinInt, 1}))
	w.add([3]int{}, good("1", [3]int{1, 1, 1}), good("0", [3]int{}), good("-1", [3]int{-1, 1, 1}), good("max", [3]int{math.MaxInt, 1, 1}))
	w.add([]byte(nil), good("nil", []byte(nil)), good("none", []byte{}), good("3", make([]byte, 3)), good("16", make([]byte, 16)))
	w.add(tenon.Float32, good("float32", tenon.Float32), good("int64", tenon.Int64), good("bool", tenon.Bool),
		good("complex64", tenon.Complex64), good("float16", tenon.Float16),
		good("Invalid", dtype.Invalid), good("unknown", tenon.DType(200)))
	w.add((*cuda.Stream)(nil), value{name: "own", make: func(x *tenon.Exec) any { return x.Stream() }}, bad("nil", (*cuda.Stream)(nil)),
		bad("zero", new(cuda.Stream)), good("foreign", other.Stream()))
	w.add((*cuda.Generator)(nil), good("new", cuda.NewGenerator(1)), good("zero", new(cuda.Generator)), good("nil", (*cuda.Generator)(nil)))
	w.add((*cuda.Device)(nil), value{name: "own", make: func(x *tenon.Exec) any { return x.Device() }}, bad("nil", (*cuda.Device)(nil)),
		bad("zero", new(cuda.Device)), good("foreign", other.Device()))
	pool := func(name string, close bool) value {
		return value{name: name, make: func(x *tenon.Exec) any {
			p, err := cuda.NewMemPool(x.Device())
			if err == nil && close {
				err = p.Close()
			}
			if err != nil {
				return (*cuda.MemPool)(nil)
			}
			return p
		}}
	}
	w.add((*cuda.MemPool)(nil), pool("own", false), pool("closed", true), good("nil", (*cuda.MemPool)(nil)), bad("zero", new(cuda.MemPool)))
	w.add((*cuda.PoolCheckpoint)(nil), bad("nil", (*cuda.PoolCheckpoint)(nil)), bad("zero", new(cuda.PoolCheckpoint)))
	w.add((*cuda.Event)(nil), value{name: "new", make: func(x *tenon.Exec) any { return x.Device().NewEvent(cuda.EventOpt{Timing: true}) }},
		bad("nil", (*cuda.Event)(nil)), bad("zero", new(cuda.Event)),
		value{name: "foreign", make: func(*tenon.Exec) any { return other.Device().NewEvent() }})
	graph := func(name string, close bool) value {
		return value{name: name, make: func(x *tenon.Exec) any {
			a := x.Ones([]int{2}, tenon.Float32)
			g, err := x.Capture(func(x *tenon.Exec) { x.AddS(a, 1) })
			if err == nil && close {
				err = g.Close()
			}
			if err != nil {
				return (*tenon.Graph)(nil)
			}
			return g
		}, wrong: close}
	}
	w.add((*tenon.Graph)(nil), graph("own", false), graph("closed", true), bad("nil", (*tenon.Graph)(nil)), bad("zero", new(tenon.Graph)))
	w.add((*kernel.Kernel)(nil), bad("nil", (*kernel.Kernel)(nil)), bad("zero", new(kernel.Kernel)))
	w.add((*tenon.Function)(nil), value{name: "nil", make: func(*tenon.Exec) any { return nil }, wrong: true},
		good("of nothing", ofNothing{}))
	w.add([]tenon.Arg(nil), good("nil", []tenon.Arg(nil)), bad("zero", []tenon.Arg{{}}), bad("nil tensor", []tenon.Arg{tenon.In(nil)}))
	w.add((*tenon.Exec)(nil), value{name: "own", make: func(x *tenon.Exec) any { return x }}, bad("nil", (*tenon.Exec)(nil)),
		bad("zero", new(tenon.Exec)))
	return w
}

// ofNothing is a Function without outputs.
type ofNothing struct{}

func (ofNothing) Forward(*tenon.Exec, *tenon.FunctionContext, ...*tenon.Tensor) []*tenon.Tensor {
	return nil
}

func (ofNothing) Backward(*tenon.Exec, *tenon.FunctionContext, ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	return nil, nil
}

// add registers the values that arguments of the sample's type take; a nil *Interface stands for an interface type.
func (w *walk) add(sample any, vs ...value) {
	t := reflect.TypeOf(sample)
	if t.Kind() == reflect.Pointer && t.Elem().Kind() == reflect.Interface {
		t = t.Elem()
	}
	w.values[t] = vs
}

// of returns the values of a type; values of structs and functions are generated.
func (w *walk) of(t reflect.Type) []value {
	if vs := w.values[t]; vs != nil {
		return vs
	}
	var vs []value
	switch t.Kind() {
	case reflect.Struct:
		vs = append(vs, good("zero", reflect.Zero(t).Interface()))
		for i := range 6 {
			if t.NumField() > 0 && t.Field(0).IsExported() {
				v := reflect.New(t).Elem()
				vs = append(vs, value{name: fmt.Sprint("filled ", i), make: func(x *tenon.Exec) any {
					for k := range v.NumField() {
						if f := v.Field(k); f.CanSet() {
							all := w.of(f.Type())
							set(f, all[(i*7+k)%len(all)].make(x))
						}
					}
					return v.Interface()
				}})
			}
		}
	case reflect.Func:
		vs = append(vs, good("stub", reflect.MakeFunc(t, func([]reflect.Value) []reflect.Value {
			var out []reflect.Value
			for i := range t.NumOut() {
				out = append(out, reflect.Zero(t.Out(i)))
			}
			return out
		}).Interface()), value{name: "nil", make: func(*tenon.Exec) any { return reflect.Zero(t).Interface() }, wrong: true})
	case reflect.Pointer:
		vs = append(vs, value{name: "nil", make: func(*tenon.Exec) any { return reflect.Zero(t).Interface() }})
		for _, v := range w.of(t.Elem()) {
			vs = append(vs, value{name: "to " + v.name, make: func(x *tenon.Exec) any {
				p := reflect.New(t.Elem())
				set(p.Elem(), v.make(x))
				return p.Interface()
			}})
		}
	case reflect.Slice:
		vs = append(vs, value{name: "nil", make: func(*tenon.Exec) any { return reflect.Zero(t).Interface() }})
		for _, v := range w.of(t.Elem()) {
			vs = append(vs, value{name: "one " + v.name, make: func(x *tenon.Exec) any {
				s := reflect.MakeSlice(t, 1, 1)
				set(s.Index(0), v.make(x))
				return s.Interface()
			}, wrong: v.wrong})
		}
	case reflect.Interface:
		vs = append(vs, value{name: "nil", make: func(*tenon.Exec) any { return nil }})
		if t.NumMethod() == 0 {
			vs = append(vs, good("0", 0), good("text", "text"))
		}
	default:
		vs = append(vs, good("zero", reflect.Zero(t).Interface()))
		if like := w.values[basic[t.Kind()]]; like != nil && t != basic[t.Kind()] {
			for _, v := range like {
				vs = append(vs, good(v.name, reflect.ValueOf(v.make(nil)).Convert(t).Interface()))
			}
		}
	}
	w.values[t] = vs
	return vs
}

// basic maps a kind to the type whose values all named types of that kind get.
var basic = map[reflect.Kind]reflect.Type{reflect.Int: reflect.TypeFor[int](), reflect.String: reflect.TypeFor[string](),
	reflect.Uint64: reflect.TypeFor[uint64](),
	reflect.Int64:  reflect.TypeFor[int64](), reflect.Float64: reflect.TypeFor[float64]()}

func set(v reflect.Value, to any) {
	if to == nil {
		v.SetZero()
		return
	}
	v.Set(reflect.ValueOf(to))
}

// mayBe are the arguments, by method and index, at which an operation accepts a tensor that others refuse: nil, or a tensor on another
// device.
var mayBe = map[string]map[string]string{
	"nil": {
		"Build": "1", "Write": "3", "Len": "0", "Fields": "0", "Infos": "0", "Metadata": "0", "In": "0", "Mapped": "0", "Out": "0",
		"SetGrad": "1", "SetLRTensor": "2", "Nodes": "0", "Pool": "0", "Close": "0", "OnOutOfMemory": "1", "String": "0",
		"Loader.State": "0",
		"Func.Forward": "1 2", "Identity.Forward": "1 2", "Sequential.Forward": "2",
		"BCE": "3", "UsePool": "1", "BCEWithLogits": "3 4", "BatchNorm": "2 3 4 5", "Clamp": "2 3", "ClampInto": "3 4", "Conv1d": "3",
		"Conv2d": "3", "ConvTranspose2d": "3", "CrossEntropy": "3", "Linear": "3", "LinearInto": "4",
	},
	"zero": {
		"In": "0", "Mapped": "0", "Out": "0", "Nodes": "0", "Pool": "0", "Close": "0", "Infos": "0", "Metadata": "0", "Error": "0",
		"Unwrap": "0", "Is": "0", "String": "0",
		"Func.Forward": "1 2", "Identity.Forward": "1 2", "Sequential.Forward": "2",
	},
	"unsound": {"String": "0"},
	"closed": {
		"Func.Forward": "2", "Identity.Forward": "2", "Sequential.Forward": "2", "UsePool": "1",
	},
	"foreign": {
		"Read": "1", "Set": "1", "Func.Forward": "2", "Identity.Forward": "2", "Sequential.Forward": "2", "NewBuffer": "0", "NewParam": "0",
		"AtLeast1D": "1", "BatchNorm": "2 3 4 5", "Bytes": "1", "Contiguous": "1", "CopyAsyncInto": "1 2", "CopyInto": "2",
		"IndexPutInto": "2", "ExpandAs": "2", "Keep": "1",
		"Positive": "1", "RecordStream": "1", "SharesStorage": "1", "To": "1", "ToDType": "1",
	},
}

func allowed(name string, i int, kind string) bool {
	if i == 0 && (kind == "closed" || kind == "foreign" || name == "tenon.Tensor.Close" || name == "tenon.Tensor.String") {
		return true // a tensor's methods describe it on any device
	}
	method := name[strings.LastIndexByte(name, '.')+1:]
	_, typed, _ := strings.Cut(name, ".")
	return slices.Contains(strings.Fields(mayBe[kind][method]+" "+mayBe[kind][typed]), strconv.Itoa(i))
}

// function walks one function, given as a value. In the first profiles, every argument takes each of its values while the others are
// valid; in the other profiles all arguments are valid. Calls with random values follow.
func (w *walk) function(name string, f reflect.Value) {
	t := f.Type()
	hostile, random := 3, 8
	if w.few {
		hostile, random = 1, 3
	}
	for p := range profiles {
		w.call(name, f, w.sound(t, p), "")
		if p >= hostile {
			continue
		}
		for i := range t.NumIn() {
			for _, v := range w.of(t.In(i)) {
				args := w.sound(t, p)
				args[i] = v
				must := ""
				if key := fmt.Sprintf("%s %d %s", name, i, v.name); v.wrong && !allowed(name, i, v.name) {
					must = key
				}
				w.call(name, f, args, must)
			}
		}
	}
	for range random {
		args := make([]value, t.NumIn())
		for i := range args {
			vs := w.of(t.In(i))
			args[i] = vs[w.rand.IntN(len(vs))]
		}
		w.call(name, f, args, "")
	}
}

// sound returns valid arguments for a function of type t; tensors have the given profile.
func (w *walk) sound(t reflect.Type, profile int) []value {
	args := make([]value, t.NumIn())
	for i := range args {
		vs := w.of(t.In(i))
		args[i] = vs[0]
		if in := t.In(i); in == reflect.TypeFor[*tenon.Tensor]() || in == reflect.TypeFor[[]*tenon.Tensor]() {
			args[i] = vs[profile]
		}
	}
	return args
}

// call makes one call. must names the argument because of which it must not succeed, if there is one.
func (w *walk) call(name string, f reflect.Value, args []value, must string) {
	w.run(describe(name, args), must, func(x *tenon.Exec) error { return invoke(f, w.arguments(x, f, args)) })
}

func describe(name string, args []value) string {
	names := make([]string, len(args))
	for i, a := range args {
		names[i] = a.name
	}
	return name + "(" + strings.Join(names, ", ") + ")"
}

// arguments makes the arguments of f.
func (w *walk) arguments(x *tenon.Exec, f reflect.Value, args []value) []reflect.Value {
	in := make([]reflect.Value, len(args))
	now := 0
	defer func() {
		if r := recover(); r != nil {
			e, _ := r.(*fault.Error)
			if e == nil || e.Kind != fault.Device {
				w.report(args[now].name, "the argument %s of %s cannot be made: %v", args[now].name, f.Type(), r)
			}
			panic(r)
		}
	}()
	for i, a := range args {
		now = i
		in[i] = reflect.New(f.Type().In(i)).Elem()
		set(in[i], a.make(x))
	}
	return in
}

// invoke calls f and returns its error result.
func invoke(f reflect.Value, in []reflect.Value) error {
	_, err := results(f, in)
	return err
}

// results calls f and returns its results, the last of which may be an error.
func results(f reflect.Value, in []reflect.Value) (out []reflect.Value, err error) {
	if n := f.Type().NumOut(); n > 0 && f.Type().Out(n-1) == reflect.TypeFor[error]() {
		defer func() {
			if r := recover(); r != nil {
				e, ok := r.(*fault.Error)
				if !ok {
					panic(r)
				}
				err = thrown{e}
			}
		}()
	}
	if f.Type().IsVariadic() {
		out = f.CallSlice(in)
	} else {
		out = f.Call(in)
	}
	for _, o := range out {
		if err, ok := o.Interface().(error); ok {
			return out, returned{err}
		}
		if o.Type().CanSeq2() && o.Kind() == reflect.Func {
			for _, v := range o.Seq2() {
				if err, ok := v.Interface().(error); ok && err != nil {
					return out, returned{err}
				}
			}
		}
	}
	return out, nil
}

// thrown is the error of a function that panicked although it returns errors.
type thrown struct{ error }

func (t thrown) Unwrap() error { return t.error }

// run calls f in a scope and judges how it ends.
func (w *walk) run(what, must string, f func(x *tenon.Exec) error) {
	hung := time.AfterFunc(time.Minute, func() { panic("hangs: " + what) })
	defer hung.Stop()
	w.judged = nil
	err := w.made(what, f)
	w.judge(what, err, must)
	if !w.x.Capturing() {
		_ = w.x.Device().Synchronize() // reports failures on the device here, not in the next call
	}
	if fault.KindOf(err) == fault.Device && w.again != nil {
		w.x = w.again()
	}
}

// returned is an error that a function returned instead of panicking.
type returned struct{ error }

// made calls f in a scope and turns its panic into an error.
func (w *walk) made(what string, f func(x *tenon.Exec) error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *fault.Error:
			err = r
		default:
			err = errRuntime
			w.report(panicked(), "%s: panics with %v\n%s", what, r, panicked())
		}
	}()
	w.x.Scope(func(x *tenon.Exec) { err = f(x) })
	return err
}

// panicked returns the library's source lines that a panic came from.
func panicked() string {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	var lines []string
	for fr, more := frames.Next(); more && len(lines) < 4; fr, more = frames.Next() {
		if strings.HasPrefix(fr.Function, "tenon") && !strings.HasSuffix(fr.File, "_test.go") {
			lines = append(lines, fmt.Sprintf("\t%s:%d", fr.File, fr.Line))
		}
	}
	return strings.Join(lines, "\n")
}

// errRuntime stands for a panic that has been reported.
var errRuntime = errors.New("a panic of the runtime")

// report fails the test, once for each key.
func (w *walk) report(key, format string, args ...any) {
	if !w.told[key] {
		w.told[key] = true
		w.t.Errorf(format, args...)
	}
}

// calledAt reports whether e comes from a call that results made, not from one that made an argument: those may fail in a capture of
// another Exec.
func calledAt(e *fault.Error) bool {
	f := runtime.FuncForPC(reflect.ValueOf(results).Pointer())
	file, line := f.FileLine(f.Entry())
	return e.File == file && line <= e.Line && e.Line < line+40
}

// judge fails the test unless err, the error of a call, is one that a user can act on.
func (w *walk) judge(what string, err error, must string) {
	switch {
	case err == errRuntime || err == nil && must == "":
		return
	case err == nil:
		w.report(must, "%s succeeds; wrong is %s", what, must)
		return
	}
	var r returned
	result := errors.As(err, &r)
	if result {
		err = r.error
	}
	var e *fault.Error
	if !errors.As(err, &e) {
		if strings.HasPrefix(what, "memcheck.") && len(err.Error()) > 10 {
			return // tools return plain errors
		}
		w.report(err.Error(), "%s: the error is no *fault.Error: %v", what, err)
		return
	}
	if e.Kind == 0 || len(e.Error()) < 10 || strings.HasSuffix(e.Msg, ".") {
		w.report(e.Msg, "%s: the error says %q, kind %v", what, e.Msg, e.Kind)
	}
	var t thrown
	if errors.As(err, &t) {
		w.report(what, "%s panics with %v, and should return it", what, e)
	}
	if (!result || strings.HasPrefix(what, "tenon.")) && (e.Op == "" || e.Line == 0) {
		w.report(e.Msg, "%s: the error has operation %q and line %d: %v", what, e.Op, e.Line, e)
	}
	name, _, _ := strings.Cut(what, "(")
	own := !w.judged[e.Error()] // not that of a call inside the callback
	if w.judged == nil {
		w.judged = map[string]bool{}
	}
	w.judged[e.Error()] = true
	if method, ok := strings.CutPrefix(name, "tenon.Exec."); ok && own && calledAt(e) && e.Op != method {
		w.report(name, "%s: the error is of %q, not of what was called: %v", what, e.Op, e)
	}
	if w.said[e.Msg] == "" {
		w.said[e.Msg] = what
	}
}

// methods calls do with the exported methods of sample's type, except those in leave.
func methods(sample any, do func(name string, f reflect.Value), leave ...string) {
	t := reflect.TypeOf(sample)
	for i := range t.NumMethod() {
		if m := t.Method(i); !slices.Contains(leave, m.Name) {
			do(strings.TrimPrefix(t.String(), "*")+"."+m.Name, m.Func)
		}
	}
}

// walkMemory is the memory of the devices under test. It is small so that a call with a large result is refused before it works for
// seconds.
const walkMemory = 64 << 20

// limited limits the processor to walkMemory until the test ends.
func limited(t testing.TB) {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		t.Fatal(err)
	}
	d := x.Device()
	t.Cleanup(func() {
		if err := d.SetMemoryFraction(1); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(d.EmptyCache(), d.SetMemoryFraction(walkMemory/float64(d.TotalMemory()))); err != nil {
		t.Fatal(err)
	}
}

// simulated opens a device of walkMemory, and closes it when the test ends.
func simulated(t testing.TB) *tenon.Exec {
	x, err := tenon.Open(tenon.Sim(walkMemory))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { x.Close() })
	return x
}

// TestMisuseWalk: whatever the operations are called with, no call panics in Go's runtime, hangs, or accepts an invalid tensor.
func TestMisuseWalk(t *testing.T) {
	limited(t)
	walked := func(t *testing.T, w *walk) {
		methods(w.x, w.function, "Close")
		methods((*tenon.Tensor)(nil), w.function)
		for msg, what := range w.said {
			t.Logf("%s\n\t\t%s", msg, what)
		}
	}
	t.Run("sim", func(t *testing.T) {
		w := newWalk(t, simulated(t), simulated(t))
		w.few = true
		w.again = func() *tenon.Exec { return simulated(t) }
		walked(t, w)
	})
	for name, sel := range map[string]tenon.Selector{"cpu": tenon.CPU(), "cuda": tenon.CUDA(0)} {
		if name == "cuda" && tenon.GPUs() == 0 {
			continue
		}
		t.Run(name, func(t *testing.T) {
			x, err := tenon.Open(sel)
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			walked(t, newWalk(t, x, simulated(t)))
		})
	}
}

// While a graph is captured every call works or is refused, and the device works afterwards.
func TestMisuseInCapture(t *testing.T) {
	fresh := func() *tenon.Exec {
		x, err := tenon.Open(tenon.Sim(0))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { x.Close() })
		return x
	}
	x := fresh()
	w := newWalk(t, x, fresh())
	for _, sample := range []any{x, (*cuda.Stream)(nil), (*cuda.Event)(nil), (*cuda.MemPool)(nil), (*cuda.Generator)(nil),
		(*cuda.Device)(nil)} {
		methods(sample, func(name string, f reflect.Value) {
			if _, ok := sample.(*cuda.Device); ok {
				x = fresh() // its settings change
			}
			for p := range 4 {
				what := "captured " + describe(name, w.sound(f.Type(), p))
				w.x = x
				w.run(what, "", func(x *tenon.Exec) error {
					g, err := x.Capture(func(y *tenon.Exec) {
						w.x = y
						w.call(name, f, w.sound(f.Type(), p), "")
					})
					if err != nil {
						return returned{err}
					}
					return g.Close()
				})
				one := x.Ones([]int{1}, tenon.Float32)
				if v, err := x.Item(x.AddS(one, 1)); err != nil || v != 2 {
					t.Fatalf("after %s: 1+1 = %v, %v", what, v, err)
				}
				one.Close()
			}
		}, "Close")
	}
}

// calls makes arguments for every operation and returns functions that call it.
func (w *walk) calls() []func() {
	var later []func()
	prepare := func(name string, f reflect.Value) {
		for p := range profiles {
			args := w.sound(f.Type(), p)
			in := w.arguments(w.x, f, args)
			later = append(later, func() { w.run(describe(name, args), "", func(*tenon.Exec) error { return invoke(f, in) }) })
		}
	}
	for _, sample := range []any{w.x, (*tenon.Tensor)(nil), (*cuda.Device)(nil), (*cuda.Stream)(nil), (*cuda.Event)(nil),
		(*cuda.MemPool)(nil), (*tenon.Graph)(nil)} {
		methods(sample, prepare)
	}
	return later
}

// stray is a kernel that writes outside all memory.
var stray = kernel.Build("stray", func(k *kernel.Builder) {
	b := k.Buffer("b", tenon.Float32)
	b.Store(k.I64(1<<40), k.F32(0))
})

// A device that was closed, or lost to a fault, gives only errors.
func TestMisuseOfDeadDevice(t *testing.T) {
	for name, kill := range map[string]func(t *testing.T, x *tenon.Exec){
		"closed": func(t *testing.T, x *tenon.Exec) {
			if err := x.Close(); err != nil {
				t.Fatal(err)
			}
		},
		"lost": func(t *testing.T, x *tenon.Exec) {
			x.Launch(stray, tenon.Over(1), tenon.Out(x.Ones([]int{2}, tenon.Float32)))
			if err := x.Synchronize(); fault.KindOf(err) != fault.Device {
				t.Fatalf("a kernel that writes where no memory is: %v", err)
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			x, err := tenon.Open(tenon.Sim(1 << 30))
			if err != nil {
				t.Fatal(err)
			}
			defer x.Close()
			other, err := tenon.Open(tenon.Sim(1 << 30))
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			w := newWalk(t, x, other)
			calls := w.calls()
			kill(t, x)
			for _, f := range calls {
				f()
			}
			for msg, what := range w.said {
				t.Logf("%s\n\t\t%s", msg, what)
			}
		})
	}
}

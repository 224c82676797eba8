package tenon_test

import (
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"runtime"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
)

// faceMethods are the methods of Exec and Tensor, ordered by a hash of their names, so that a program's bytes still name the same methods
// after others are added.
var faceMethods = func() (all []faceMethod) {
	add := func(name string, f reflect.Value) {
		h := fnv.New32a()
		h.Write([]byte(name))
		all = append(all, faceMethod{uint16(h.Sum32() ^ h.Sum32()>>16), name, f})
	}
	// A registration outlives the program, and the functions of Parallel run at the same time, which a sequence of calls cannot describe.
	methods((*tenon.Exec)(nil), add, "Close", "RegisterHost", "Parallel")
	methods((*tenon.Tensor)(nil), add)
	slices.SortFunc(all, func(a, b faceMethod) int { return int(a.hash) - int(b.hash) })
	return all
}()

type faceMethod struct {
	hash uint16
	name string
	f    reflect.Value
}

// opcode returns the two bytes that name a method.
func opcode(name string) []byte {
	i := slices.IndexFunc(faceMethods, func(m faceMethod) bool { return m.name == name })
	return []byte{byte(faceMethods[i].hash >> 8), byte(faceMethods[i].hash)}
}

// faceDevice is one of the devices that programs run on.
type faceDevice struct {
	w    *walk
	open func() (*tenon.Exec, error)
	// idle says that kernels do nothing: elements are not bounded.
	idle bool
}

// faceProgram is a sequence of calls encoded in bytes. Results are operands of later calls.
type faceProgram struct {
	*faceDevice
	in     []byte
	execs  []*tenon.Exec
	kept   []*tenon.Tensor
	graphs []*tenon.Graph
	depth  int
	calls  int
	log    []string
}

const (
	faceCalls = 40
	// faceElements bounds the elements of an operand that a kernel may have to read, and with it the time of a call.
	faceElements = 1 << 12
)

func (p *faceProgram) next() byte {
	if len(p.in) == 0 {
		return 0
	}
	b := p.in[0]
	p.in = p.in[1:]
	return b
}

// small returns a number that is common in shapes and dimensions.
func (p *faceProgram) small() int { return int(p.next()%10) - 2 }

// made returns a new tensor of some shape, type and layout.
func (p *faceProgram) made(x *tenon.Exec) *tenon.Tensor {
	b, shape := p.next(), []int{}
	for range b % 5 {
		shape = append(shape, int(p.next()%7))
	}
	dts := []tenon.DType{tenon.Float32, tenon.Float64, tenon.Int64, tenon.Bool, tenon.Float16, tenon.BFloat16, tenon.Complex64,
		tenon.Uint8, tenon.Int32, tenon.Complex128, tenon.Int8, tenon.Int16}
	c := p.next()
	dt := dts[int(c)%len(dts)]
	t := x.Full(shape, float64(int8(p.next()))/8, tenon.Float32)
	if b&64 != 0 {
		t = x.Add(t, x.Reshape(x.Arange(float64(t.Numel()), tenon.Float32), shape...))
	}
	if t = x.ToDType(t, dt); b&8 != 0 && len(shape) > 1 {
		t = x.Transpose(t, 0, -1)
	}
	if b&16 != 0 && len(shape) > 0 && shape[0] > 1 {
		t = x.Slice(t, 0, 1, shape[0], 1)
	}
	if b&32 != 0 && (dt.IsFloat() || dt.IsComplex()) {
		t = x.Detach(t).SetRequiresGrad(true)
	}
	return t
}

// hostile returns one of the walk's values of type t.
func (p *faceProgram) hostile(t reflect.Type) reflect.Value {
	vs := p.w.of(t)
	v := reflect.New(t).Elem()
	set(v, vs[int(p.next())%len(vs)].make(p.execs[0]))
	return v
}

func (p *faceProgram) tensor(x *tenon.Exec) *tenon.Tensor {
	switch b := p.next(); {
	case b < 150 && len(p.kept) > 0:
		return p.kept[len(p.kept)-1-int(b)%len(p.kept)]
	case b < 225:
		return p.made(x)
	case b < 232 && p.idle:
		return vast[int(p.next())%len(vast)].make(x).(*tenon.Tensor)
	}
	return p.hostile(reflect.TypeFor[*tenon.Tensor]()).Interface().(*tenon.Tensor)
}

func (p *faceProgram) tensors(x *tenon.Exec) (ts []*tenon.Tensor) {
	for range p.next() % 5 {
		ts = append(ts, p.tensor(x))
	}
	return ts
}

var faceWords = []string{"", "mean", "sum", "none", "batchmean", "constant", "reflect", "replicate", "circular", "add", "multiply", "amax",
	"amin", "prod", "trunc", "floor", "tanh",
	"ij,jk->ik", "bij,bjk->bik", "ii->i", "...i,...i", "i,i->", "a,b->ab", "ij->ji", "nonsense\x00"}

// value makes an argument of type t for a call on x.
func (p *faceProgram) value(x *tenon.Exec, t reflect.Type) reflect.Value {
	v := reflect.New(t).Elem()
	switch {
	case t == reflect.TypeFor[*tenon.Tensor]():
		set(v, p.tensor(x))
	case t == reflect.TypeFor[[]*tenon.Tensor]():
		set(v, p.tensors(x))
	case t == reflect.TypeFor[*tenon.Graph]():
		if b := p.next(); b < 200 && len(p.graphs) > 0 {
			set(v, p.graphs[int(b)%len(p.graphs)])
			break
		}
		v = p.hostile(t)
		p.graphs = append(p.graphs, v.Interface().(*tenon.Graph))
	case t == reflect.TypeFor[tenon.Function]():
		set(v, faceFunction{p})
	case t == reflect.TypeFor[tenon.DType]() && p.next() < 240:
		set(v, tenon.DType(1+p.next()%12))
	case t == reflect.TypeFor[[]int]() && p.next() < 224:
		var l []int
		for range p.next() % 5 {
			l = append(l, p.small())
		}
		set(v, l)
	case t.Kind() == reflect.Int && p.next() < 224, t.Kind() == reflect.Int64 && p.next() < 224:
		v.SetInt(int64(p.small()))
	case t.Kind() == reflect.Float64 && p.next() < 192:
		v.SetFloat(float64(int8(p.next())) / 8)
	case t == reflect.TypeFor[tenon.Scalar]() && p.next() < 192:
		set(v, float64(int8(p.next()))/8)
	case t.Kind() == reflect.Bool:
		v.SetBool(p.next()&1 != 0)
	case t.Kind() == reflect.String:
		v.SetString(faceWords[int(p.next())%len(faceWords)])
	case t.Kind() == reflect.Array && t.Elem().Kind() == reflect.Int:
		for i := range t.Len() {
			v.Index(i).Set(p.value(x, t.Elem()))
		}
	case t.Kind() == reflect.Func && p.next() < 240:
		return p.callback(t)
	case t.Kind() == reflect.Struct && t.NumField() > 0 && t.Field(0).IsExported() && t.PkgPath() == "tenon.dev":
		for i := range t.NumField() {
			if p.next()&1 != 0 {
				v.Field(i).Set(p.value(x, t.Field(i).Type))
			}
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct && t.Elem().PkgPath() == "tenon.dev": // options
		for range p.next() % 3 {
			v.Set(reflect.Append(v, p.value(x, t.Elem())))
		}
	default:
		return p.hostile(t)
	}
	return v
}

// callback returns a function that makes its own calls and returns some tensors.
func (p *faceProgram) callback(t reflect.Type) reflect.Value {
	return reflect.MakeFunc(t, func(in []reflect.Value) (out []reflect.Value) {
		x := p.execs[0]
		for _, v := range in {
			if y, ok := v.Interface().(*tenon.Exec); ok && y != nil {
				x = y
			}
		}
		p.nested(x)
		for i := range t.NumOut() {
			v := reflect.New(t.Out(i)).Elem()
			switch t.Out(i) {
			case reflect.TypeFor[*tenon.Tensor]():
				set(v, p.tensor(x))
			case reflect.TypeFor[[]*tenon.Tensor]():
				set(v, p.tensors(x))
			}
			out = append(out, v)
		}
		return out
	})
}

func (p *faceProgram) nested(x *tenon.Exec) {
	if p.depth++; p.depth < 3 {
		p.execs = append(p.execs, x)
		for range p.next() % 4 {
			p.call(x)
		}
	}
	p.depth--
}

// faceFunction is a Function defined by the program.
type faceFunction struct{ p *faceProgram }

func (f faceFunction) Forward(x *tenon.Exec, c *tenon.FunctionContext, in ...*tenon.Tensor) []*tenon.Tensor {
	if f.p.next()&1 != 0 {
		c.Save(in...)
	}
	f.p.nested(x)
	return f.p.tensors(x)
}

func (f faceFunction) Backward(x *tenon.Exec, c *tenon.FunctionContext, grads ...*tenon.Tensor) ([]*tenon.Tensor, error) {
	f.p.nested(x)
	if f.p.next()&1 != 0 {
		return c.Saved(), nil
	}
	return f.p.tensors(x), nil
}

// keep records the results of a call as operands for later calls.
func (p *faceProgram) keep(out []reflect.Value) {
	tensor := func(t *tenon.Tensor) {
		if t != nil && (p.idle || t.Numel() <= faceElements) {
			p.kept = append(p.kept, t)
		}
	}
	for _, o := range out {
		switch v := o.Interface().(type) {
		case *tenon.Tensor:
			tensor(v)
		case []*tenon.Tensor:
			for _, t := range v[:min(len(v), 8)] {
				tensor(t)
			}
		case *tenon.Exec:
			if v != nil {
				p.execs = append(p.execs, v)
			}
		case *tenon.Graph:
			if v != nil {
				p.graphs = append(p.graphs, v)
			}
		}
	}
}

// call makes the next call on x, or on an Exec that an earlier call returned, and judges how it ends.
func (p *faceProgram) call(x *tenon.Exec) {
	if p.calls++; p.calls > faceCalls {
		return
	}
	if p.depth == 0 {
		p.w.judged = nil
	}
	hash := uint16(p.next())<<8 | uint16(p.next())
	i := sort.Search(len(faceMethods), func(i int) bool { return faceMethods[i].hash >= hash })
	m := faceMethods[i%len(faceMethods)]
	if b := p.next(); b < 64 {
		x = p.execs[int(b)%len(p.execs)]
	}
	hung := time.AfterFunc(time.Minute, func() { panic("hangs: " + strings.Join(p.log, "\n")) })
	defer hung.Stop()
	err := p.attempt(m.name, func() error {
		t := m.f.Type()
		in := make([]reflect.Value, t.NumIn())
		names := make([]string, t.NumIn())
		if t.In(0) == reflect.TypeFor[*tenon.Exec]() {
			in[0] = reflect.ValueOf(x)
		} else {
			in[0] = reflect.ValueOf(p.tensor(x))
		}
		for i := 1; i < len(in); i++ {
			in[i] = p.value(x, t.In(i))
			names[i] = told(in[i])
		}
		names[0] = told(in[0])
		p.log = append(p.log, m.name+"("+strings.Join(names, ", ")+")")
		out, err := results(m.f, in)
		p.keep(out)
		return err
	})
	if fault.KindOf(err) == fault.OutOfMemory {
		p.calls += faceCalls / 8 // it ran garbage collections, which are slow, and Go's fuzzer stops an input after ten seconds
	}
	p.w.judge(m.name, err, "")
	if p.w.t.Failed() {
		p.w.t.Fatalf("after\n%s", strings.Join(p.log, "\n"))
	}
}

func told(v reflect.Value) string {
	if v.Kind() == reflect.Func || v.Type() == reflect.TypeFor[tenon.Function]() {
		return "func"
	}
	if x, ok := v.Interface().(*tenon.Exec); ok {
		return fmt.Sprintf("exec %p", x)
	}
	return fmt.Sprintf("%v", v)
}

// attempt runs f. A panic of the library becomes an error, any other a finding.
func (p *faceProgram) attempt(what string, f func() error) (err error) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case *fault.Error:
			err = r
		default:
			err = errRuntime
			p.w.t.Fatalf("%s panics with %v\n%s\nafter\n%s", what, r, panicked(), strings.Join(p.log, "\n"))
		}
	}()
	return f()
}

// end closes what the program made and returns how many of its storages are left.
func (p *faceProgram) end(before int) int {
	for _, g := range p.graphs {
		g.Close()
	}
	for _, t := range p.kept {
		t.Close()
	}
	w := p.w
	*p = faceProgram{faceDevice: &faceDevice{w: w}}
	for range 200 { // storages that only the tape kept go with it
		if core.LiveStorages() <= before {
			return 0
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	return core.LiveStorages() - before
}

// faceSeeds are small programs.
func faceSeeds() [][]byte {
	call := func(name string, args ...byte) []byte { return append(append(opcode("tenon."+name), 255), args...) }
	matrix := []byte{200, 67, 3, 3, 0, 8} // a tensor of [3 3] float32
	leaf := []byte{200, 97, 3, 3, 0, 8}
	return [][]byte{
		slices.Concat([]byte{0}, call("Exec.Add", append(slices.Clone(matrix), matrix...)...), call("Exec.MM", 0, 0),
			call("Exec.Format", 0)),
		slices.Concat([]byte{1}, call("Exec.Exp", leaf...), call("Exec.Sum", 0, 0, 0, 0, 0, 0, 0),
			call("Exec.Backward", 0, 255, 0, 0, 0, 0)),
		slices.Concat([]byte{2}, call("Exec.Mul", 226, 0, 226, 1), call("Exec.Unbind", 226, 3, 0, 2), call("Exec.Bytes", 226, 9)),
		slices.Concat([]byte{1}, call("Exec.Capture", append([]byte{0, 3}, call("Exec.Neg", matrix...)...)...), call("Exec.Replay", 0)),
		slices.Concat([]byte{0}, call("Exec.CrossEntropy", 200, 2, 3, 0, 0, 8, 200, 2, 3, 0, 0, 8, 255, 0),
			call("Exec.Einsum", 17, 2, 200, 2, 3, 3, 0, 8, 0)),
	}
}

// FuzzFace runs random programs of all methods of Exec and Tensor, with valid and invalid operands, on the processor, the simulator and a
// device whose kernels do nothing. No call ends in a panic of Go's runtime, hangs, or gives an error without operation and line, and no
// storage is left when all is closed.
func FuzzFace(f *testing.F) {
	limited(f)
	devices := []*faceDevice{
		{open: func() (*tenon.Exec, error) { return tenon.Open(tenon.CPU()) }},
		{open: func() (*tenon.Exec, error) { return tenon.Open(tenon.Sim(walkMemory)) }},
		{open: openIdle, idle: true},
	}
	other := simulated(f)
	for _, d := range devices {
		x, err := d.open()
		if err != nil {
			f.Fatal(err)
		}
		d.w = newWalk(f, x, other)
		f.Cleanup(func() { d.w.x.Close() })
	}
	for _, b := range faceSeeds() {
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 {
			return
		}
		d := devices[int(b[0])%len(devices)]
		w := d.w
		w.t, w.told, w.said = t, map[string]bool{}, map[string]string{}
		before := core.LiveStorages()
		p := &faceProgram{faceDevice: d, in: b[1:min(len(b), 1<<10)]}
		lost := p.attempt("the scope", func() error {
			w.x.Scope(func(x *tenon.Exec) {
				p.execs = []*tenon.Exec{x}
				for len(p.in) > 0 && p.calls < faceCalls {
					p.call(x)
				}
			})
			return w.x.Synchronize()
		})
		log := p.log
		left := p.end(before)
		if fault.KindOf(lost) == fault.Device {
			x, err := d.open()
			if err = errors.Join(err, w.x.Close()); err != nil && x == nil {
				t.Fatal(err)
			}
			w.x = x
			// an assertion about an index or a probability, which the first wait reports
		} else if lost != nil && !strings.Contains(lost.Error(), "device-side assert triggered") {
			t.Fatalf("the device gives %v after\n%s", lost, strings.Join(log, "\n"))
		}
		if left > 0 {
			t.Fatalf("%d storages are left after\n%s", left, strings.Join(log, "\n"))
		}
	})
}

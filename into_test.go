package tenon_test

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/core"
)

// intoTypes are the types that operands have in turn.
var intoTypes = []tenon.DType{tenon.Float32, tenon.Int64, tenon.Complex64, tenon.BFloat16, tenon.Float64, tenon.Bool}

// intoCase is one call: a method with operands.
type intoCase struct {
	*intoMethod
	t    *testing.T
	x    *tenon.Exec
	args operands
	want [][]byte
	like []*tenon.Tensor // the plain form's results
}

// eachInto runs f for the calls of all methods that their operands allow, each in a scope.
func eachInto(t *testing.T, x *tenon.Exec, types []tenon.DType, f func(c *intoCase)) {
	ms := intoMethods()
	if len(ms) < 150 {
		t.Fatalf("%d methods have a form with Into", len(ms))
	}
	for i := range ms {
		ran := 0
		for _, operands := range ms[i].operandsOf() {
			for _, dt := range types {
				t.Run(fmt.Sprintf("%s %v", ms[i].name, dt), func(t *testing.T) {
					x.Scope(func(x *tenon.Exec) {
						c := &intoCase{intoMethod: &ms[i], t: t, x: x}
						c.args = operands(x, dt)
						c.seed()
						if tenon.Try(func() { c.like = c.call(x, c.args) }) == nil {
							c.want = c.read(c.like)
							f(c)
							ran++
						}
					})
				})
			}
		}
		if ran == 0 && len(types) == len(intoTypes) {
			t.Errorf("%s takes none of this test's operands", ms[i].name)
		}
	}
}

// seed lets random numbers begin anew.
func (c *intoCase) seed() {
	if err := c.x.Generator().SetSeed(3); err != nil {
		c.t.Fatal(err)
	}
}

func (c *intoCase) read(ts []*tenon.Tensor) (all [][]byte) {
	c.t.Helper()
	for _, t := range ts {
		b, err := c.x.Bytes(t)
		if err != nil {
			c.t.Fatal(err)
		}
		all = append(all, b)
	}
	return all
}

// same compares the destinations with the plain form's results, bit for bit.
func (c *intoCase) same(what string, dst []*tenon.Tensor) {
	c.t.Helper()
	for i, got := range c.read(dst) {
		if !bytes.Equal(got, c.want[i]) {
			g, _ := c.x.Format(dst[i])
			w, _ := c.x.Format(c.like[i])
			c.t.Errorf("%s: result %d is\n%s\nwant\n%s", what, i, g, w)
		}
	}
}

// each makes a destination for every result.
func (c *intoCase) each(f func(like *tenon.Tensor) *tenon.Tensor) (dst []*tenon.Tensor) {
	for _, l := range c.like {
		dst = append(dst, f(l))
	}
	return dst
}

// filled is new memory of l's type and shape, with other elements.
func (c *intoCase) filled(l *tenon.Tensor) *tenon.Tensor { return c.x.Full(l.Shape(), 1, l.DType()) }

// into runs the form with Into and returns how it failed.
func (c *intoCase) into(x *tenon.Exec, dst []*tenon.Tensor) error {
	c.seed()
	return tenon.Try(func() { c.callInto(x, dst, c.args) })
}

// landingTap sees which calls get the destinations.
type landingTap struct {
	dst         []*core.Tensor
	calls, last int // last is the last call with work
	into        []int
}

func (p *landingTap) Before(f *core.Frame) bool {
	p.calls++
	if slices.ContainsFunc(f.Operands(), func(t *core.Tensor) bool { return slices.Contains(p.dst, t) }) {
		p.into = append(p.into, p.calls)
	}
	if f.Works() {
		p.last = p.calls
	}
	return false
}

func (p *landingTap) After(*core.Frame) {}

// Every method that has its result in a tensor gives the bits of the one that makes it, wherever that tensor lies, counts one change of
// it, and writes it with its last call alone. Other elements of the storage stay.
func TestInto(t *testing.T) {
	x := openOne(t)
	eachInto(t, x, intoTypes, func(c *intoCase) {
		x := c.x
		check := func(what string, dst []*tenon.Tensor) {
			t := c.t
			t.Helper()
			var before []int
			tap := &landingTap{}
			for _, d := range dst {
				before = append(before, d.Version())
				tap.dst = append(tap.dst, (*core.Tensor)(d))
			}
			old := core.SetTap((*core.Exec)(x), tap)
			err := c.into(x, dst)
			core.SetTap((*core.Exec)(x), old)
			if err != nil {
				t.Errorf("%s: %v", what, err)
				return
			}
			c.same(what, dst)
			if len(tap.into) > len(dst) || tap.last > 0 && (len(tap.into) == 0 || tap.into[0] <= tap.last-len(dst)) {
				t.Errorf("%s: of %d calls, the last with work being number %d, those that got destinations are %v", what,
					tap.calls, tap.last,
					tap.into)
			}
			for i, d := range dst {
				if n := d.Version() - before[i]; n != 1 && d.Numel() > 0 {
					t.Errorf("%s: the version of result %d rose by %d", what, i, n)
				}
			}
		}
		check("new memory", c.each(c.filled))
		// Every other element, in the reverse order of dimensions.
		var around []*tenon.Tensor
		check("a view with gaps", c.each(func(l *tenon.Tensor) *tenon.Tensor {
			shape := append([]int{2}, l.Shape()...)
			slices.Reverse(shape)
			a := x.Full(shape, 1, l.DType())
			around = append(around, x.Select(a, -1, 0))
			dims := make([]int, l.Dim())
			for i := range dims {
				dims[i] = l.Dim() - 1 - i
			}
			return x.Permute(x.Select(a, -1, 1), dims...)
		}))
		// The same order at an address that is no multiple of 16.
		check("an address between", c.each(func(l *tenon.Tensor) *tenon.Tensor {
			a := x.Full([]int{l.Numel() + 2}, 1, l.DType())
			around = append(around, x.Narrow(a, 0, 0, 1), x.Narrow(a, 0, l.Numel()+1, 1))
			return x.View(x.Narrow(a, 0, 1, l.Numel()), l.Shape()...)
		}))
		for _, a := range around {
			if a.Numel() > 0 {
				if all, err := x.Item(x.All(x.EqS(a, 1), nil)); err != nil || all != 1 {
					c.t.Errorf("elements around the destination changed (%v)", err)
				}
			}
		}
	})
}

// A destination of another shape is refused. So is one of another type, unless the operation is element-wise, which converts to any type
// that holds the result's kind of number. A destination that shares memory with operands gets the right elements or is refused.
func TestIntoOther(t *testing.T) {
	x := openOne(t)
	converts := map[string]bool{}
	eachInto(t, x, intoTypes[:3], func(c *intoCase) {
		x, t := c.x, c.t
		refused := func(what string, dst []*tenon.Tensor, words ...string) bool {
			t.Helper()
			err := c.into(x, dst)
			if err != nil && !slices.ContainsFunc(words, func(w string) bool { return strings.Contains(err.Error(), w) }) {
				t.Errorf("%s: %v, want one of %q", what, err, words)
			}
			return err != nil
		}
		dst := c.each(func(l *tenon.Tensor) *tenon.Tensor { return x.Ones(append([]int{2}, l.Shape()...), l.DType()) })
		if !strings.HasPrefix(c.name, "Rand") && !refused("another shape", dst, "the destination has shape", "is not",
			"shape") { // their shape is the destination's
			t.Error("another shape passes")
		}
		wider := c.each(func(l *tenon.Tensor) *tenon.Tensor { return x.Zeros(l.Shape(), tenon.Complex128) })
		// ScatterAddInto and IndexAddInto add in the type of their destination.
		if len(c.left) == 0 && c.name != "ScatterAdd" && c.name != "IndexAdd" && !refused("a wider type", wider,
			"give a destination of that type", "dtype", "is not defined", "scatter") {
			converts[c.name] = true
			for i, d := range wider {
				if equal, err := x.Equal(d, x.ToDType(c.like[i], tenon.Complex128)); err != nil || !equal && !hasNaN(x, c.like[i]) {
					t.Errorf("a wider type has other numbers (%v)", err)
				}
			}
		}
		if dt := c.like[0].DType(); dt != tenon.Bool && len(c.left) == 0 {
			narrow := c.each(func(l *tenon.Tensor) *tenon.Tensor { return x.Zeros(l.Shape(), tenon.Bool) })
			if !refused("a narrower type", narrow, "can't be cast", "give a destination of that type", "dtype", "scatter") {
				t.Errorf("%v goes into bool", dt)
			}
		}
		c.overlapping(refused)
	})
	for name, want := range map[string]bool{"Exp": true, "Add": true, "Where": true, "Lt": true, "MM": false, "Sum": false,
		"Softmax": false, "Cat": false} {
		if converts[name] != want {
			t.Errorf("%s converts: %v, want %v", name, converts[name], want)
		}
	}
}

func hasNaN(x *tenon.Exec, t *tenon.Tensor) bool {
	v, _ := x.Item(x.Any(x.IsNaN(t), nil))
	return v != 0
}

// overlapping uses operands as destinations, whole and in part.
func (c *intoCase) overlapping(refused func(what string, dst []*tenon.Tensor, words ...string) bool) {
	x, l := c.x, c.like[0]
	for i, a := range c.args {
		o, _ := a.(*tenon.Tensor)
		if o == nil || o.DType() != l.DType() {
			continue
		}
		args := c.args
		with := func(t *tenon.Tensor) {
			c.args = slices.Clone(args)
			c.args[i] = t
		}
		dst := c.each(c.filled)
		if slices.Equal(o.Shape(), l.Shape()) {
			own := x.Clone(o)
			with(own)
			dst[0] = own
			if !refused(fmt.Sprintf("operand %d itself", i), dst, "overlaps", "overlap") {
				c.same(fmt.Sprintf("operand %d itself", i), dst)
			}
		}
		// Memory that begins in the operand's last element.
		a := x.Full([]int{o.Numel() + l.Numel()}, 1, l.DType())
		own := x.View(x.Narrow(a, 0, 0, o.Numel()), o.Shape()...)
		x.CopyInto(own, o)
		with(own)
		dst[0] = x.View(x.Narrow(a, 0, max(o.Numel()-1, 0), l.Numel()), l.Shape()...)
		if !refused(fmt.Sprintf("a part of operand %d", i), dst, "overlaps", "overlap") {
			c.same(fmt.Sprintf("a part of operand %d", i), dst)
		}
		c.args = args
	}
}

// Where gradients are recorded, an element-wise operation is recorded as a change of its destination, with the gradients of the plain
// method. Any other operation is refused, but runs on an Exec of NoGrad.
func TestIntoRecorded(t *testing.T) {
	x := openOne(t)
	records := map[string]bool{}
	eachInto(t, x, []tenon.DType{tenon.Float64}, func(c *intoCase) {
		x, t := c.x, c.t
		var leaves []*tenon.Tensor
		leaf := func(a *tenon.Tensor) *tenon.Tensor {
			if a != nil && a.DType() == tenon.Float64 {
				leaves = append(leaves, x.Clone(a).SetRequiresGrad(true))
				return leaves[len(leaves)-1]
			}
			return a
		}
		for i, a := range c.args {
			switch a := a.(type) {
			case *tenon.Tensor:
				c.args[i] = leaf(a)
			case []*tenon.Tensor:
				for j := range a {
					a[j] = leaf(a[j])
				}
			}
		}
		plain := c.call(x, c.args)
		const words = "functions with out=... arguments don't support automatic differentiation"
		dst := c.each(c.filled)
		switch err := c.into(x, dst); {
		case !slices.ContainsFunc(plain, (*tenon.Tensor).RequiresGrad):
			if err != nil {
				t.Error(err)
			}
			c.same("what records nothing", dst)
		case err == nil:
			records[c.name] = true
			c.same("recorded", dst)
			c.gradients(plain[0], dst[0], leaves)
		case !strings.Contains(err.Error(), words):
			t.Error(err)
		default:
			if err := c.into(x.NoGrad(), dst); err != nil {
				t.Error(err)
			}
			c.same("on NoGrad", dst)
		}
		own := c.each(func(l *tenon.Tensor) *tenon.Tensor {
			d := c.filled(l)
			if d.DType() == tenon.Float64 {
				d.SetRequiresGrad(true)
			}
			return d
		})
		if err := c.into(x, own); own[0].RequiresGrad() && (err == nil || !strings.Contains(err.Error(), words) &&
			!strings.Contains(err.Error(), "leaf")) {
			t.Errorf("a destination that is a leaf: %v", err)
		}
	})
	for name, want := range map[string]bool{"Exp": true, "Mul": true, "Where": true, "MM": false, "Sum": false, "Softmax": false} {
		if records[name] != want {
			t.Errorf("%s is recorded: %v, want %v", name, records[name], want)
		}
	}
}

// gradients compares the gradients that flow through a and b.
func (c *intoCase) gradients(a, b *tenon.Tensor, leaves []*tenon.Tensor) {
	flow := func(y *tenon.Tensor) [][]byte {
		g, err := c.x.Grad([]*tenon.Tensor{c.x.Sum(c.x.Mul(y, y), nil)}, leaves, tenon.GradOpt{AllowUnused: true})
		if err != nil {
			c.t.Fatal(err)
		}
		return c.read(slices.DeleteFunc(g, func(t *tenon.Tensor) bool { return t == nil }))
	}
	if want, got := flow(a), flow(b); !slices.EqualFunc(got, want, bytes.Equal) {
		c.t.Errorf("the gradients are %v, want %v", got, want)
	}
}

// openOne opens the first GPU or, where there is none, a simulated device. Closing that device frees its kernels; the processor's kernels
// would stay and slow down every later garbage collection.
func openOne(t *testing.T) *tenon.Exec {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := x.Close(); err != nil {
			t.Error(err)
		}
	})
	return x
}

// In a graph, each replay writes the destinations. In a compiled region each run does, also when the region replays its own graph.
func TestIntoRepeated(t *testing.T) {
	x := openOne(t)
	eachInto(t, x, []tenon.DType{tenon.Float32, tenon.Int64}, func(c *intoCase) {
		x, t := c.x, c.t
		dst := c.each(c.filled)
		spoil := func() {
			for _, d := range dst {
				x.FillInto(d, 1)
			}
			c.seed()
		}
		// The plain method's results in a graph, where random numbers follow the generator's state.
		made := c.each(c.filled)
		plain, err := x.Capture(func(x *tenon.Exec) {
			for i, r := range c.call(x, c.args) {
				x.CopyInto(made[i], r)
			}
		})
		g, err2 := x.Capture(func(x *tenon.Exec) { c.callInto(x, dst, c.args) })
		if (err == nil) != (err2 == nil) {
			t.Fatalf("captured plain: %v; with a destination: %v", err, err2)
		}
		if err == nil {
			defer plain.Close()
			defer g.Close()
			eager := c.want
			for range 2 {
				c.seed()
				if err := x.Replay(plain); err != nil {
					t.Fatal(err)
				}
				c.want = c.read(made)
				spoil()
				if err := x.Replay(g); err != nil {
					t.Fatal(err)
				}
				c.same("replayed", dst)
			}
			c.want = eager
		}
		region := compile.New()
		for range 3 {
			spoil()
			err := region.Do(x, func(x *tenon.Exec) error {
				c.callInto(x, dst, c.args)
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			c.same("in a region", dst)
		}
	})
}

// Only a composite operation, or a destination that is not laid out like a new tensor, costs one kernel more than the plain method: a
// copy.
func TestIntoCopiesWhereItMust(t *testing.T) {
	x := openOne(t)
	a, b := random(x, 1, tenon.Float32, 4, 4), random(x, 2, tenon.Float32, 4, 4)
	room := x.Zeros([]int{16, 8}, tenon.Float32)
	columns, rows := x.Narrow(x.Narrow(room, 0, 0, 4), 1, 0, 4), x.View(x.Narrow(room, 0, 4, 2), 4, 4)
	odd := x.View(x.Narrow(x.View(room, -1), 0, 1, 16), 4, 4)
	launches := func(f func()) int64 {
		before := core.KernelLaunches((*core.Exec)(x))
		f()
		return core.KernelLaunches((*core.Exec)(x)) - before
	}
	product, exp := launches(func() { x.MM(a, b) }), launches(func() { x.Exp(a) })
	sum := launches(func() { x.Sum(a, []int{0}) })
	for name, c := range map[string]struct {
		f    func()
		want int64
	}{
		"a product into new memory":          {func() { x.MMInto(x.Empty([]int{4, 4}, tenon.Float32), a, b) }, product},
		"a product into rows of a tensor":    {func() { x.MMInto(rows, a, b) }, product},
		"a product into columns of a tensor": {func() { x.MMInto(columns, a, b) }, product + 1},
		"a product at an address between":    {func() { x.MMInto(odd, a, b) }, product + 1},
		"a product into a factor":            {func() { x.MMInto(b, a, b) }, product + 1},
		"a bias, a product and a sum":        {func() { x.AddMMInto(rows, a, a, b) }, product},
		"a sum":                              {func() { x.SumInto(x.Empty([]int{4}, tenon.Float32), a, []int{0}) }, sum},
		"a sum into a column": {func() { x.SumInto(x.Select(room, 1, 0), x.Ones([]int{2, 16}, tenon.Float32), []int{0}) },
			sum + 2},
		"an element-wise operation into columns":   {func() { x.ExpInto(columns, a) }, exp},
		"an element-wise operation on its operand": {func() { x.ExpInto(a, a) }, exp},
		"a composite": {func() { x.MatMulInto(x.Empty([]int{1, 4, 4}, tenon.Float32), x.Unsqueeze(a, 0), b) },
			product + 1},
	} {
		if got := launches(c.f); got != c.want {
			t.Errorf("%s launches %d kernels, want %d", name, got, c.want)
		}
	}
}

// The tensors of a list may lie in the destination, but two destinations must not share memory.
func TestIntoSharing(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		buffer := tenon.From(x, []float32{1, 2, 3, 4, 5, 6, 7, 8}, 4, 2)
		x.CatInto(buffer, []*tenon.Tensor{x.Narrow(buffer, 0, 2, 2), x.Narrow(buffer, 0, 0, 2)}, 0)
		if got, err := tenon.Read[float32](x, buffer); err != nil || !slices.Equal(got, []float32{5, 6, 7, 8, 1, 2, 3, 4}) {
			t.Errorf("halves of the destination in turn are %v, %v", got, err)
		}
		at := x.Zeros([]int{2}, tenon.Int64)
		values := x.View(x.Zeros([]int{4}, tenon.Float32), 4)
		for _, v := range []*tenon.Tensor{at, x.Narrow(at, 0, 0, 2)} {
			err := tenon.Try(func() { x.MaxDimInto(v, at, x.ToDType(x.View(values, 2, 2), tenon.Int64), 0) })
			if err == nil || !strings.Contains(err.Error(), "MaxDimInto") ||
				!strings.Contains(err.Error(), "the two destinations share memory") {
				t.Errorf("one destination for two results: %v", err)
			}
		}
	})
}

// A call allocates nothing if its destination can be written directly.
func TestIntoAllocatesNothing(t *testing.T) {
	x, err := openIdle()
	if err != nil {
		t.Fatal(err)
	}
	defer x.Close()
	a, b, dst := x.Ones([]int{4, 4}, tenon.Float32), x.Ones([]int{4, 4}, tenon.Float32), x.Ones([]int{4, 4}, tenon.Float32)
	for name, f := range map[string]func(){
		"MaximumInto": func() { x.MaximumInto(dst, a, b) }, "MMInto": func() { x.MMInto(dst, a, b) }, "SoftmaxInto": func() {
			x.SoftmaxInto(dst,
				a, 1)
		},
	} {
		f()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}

package nn_test

import (
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// recurrentCase is a module with its operands on the host: in is [Time, Batch, In], starts are [Layers·Directions, Batch, Hidden].
type recurrentCase struct {
	name                    string
	gru, initial, single    bool
	opt                     nn.RecurrentOpt
	lengths                 []int64
	steps, rows, in, hidden int

	values map[string][]float64 // operands by the names of parameters, and "in", "Hidden" and "Cell"
}

func (c *recurrentCase) layers() int { return max(1, c.opt.NumLayers) }

func (c *recurrentCase) directions() int {
	if c.opt.Bidirectional {
		return 2
	}
	return 1
}

// end returns the length of a row within the input.
func (c *recurrentCase) end(row int) int {
	if c.lengths == nil {
		return c.steps
	}
	return min(c.steps, int(c.lengths[row]))
}

// expected computes the output [Time, Batch, Directions·Hidden] and the final states from c.values, one number at a time.
func (c *recurrentCase) expected() (out, hidden, cell []float64) {
	n, dirs := c.hidden, c.directions()
	hidden, cell = make([]float64, c.layers()*dirs*c.rows*n), make([]float64, c.layers()*dirs*c.rows*n)
	if c.initial {
		copy(hidden, c.values["Hidden"])
		copy(cell, c.values["Cell"])
	}
	in, width := c.values["in"], c.in
	for layer := range c.layers() {
		out = make([]float64, c.steps*c.rows*dirs*n)
		for dir := range dirs {
			key := fmt.Sprintf("_l%d%s", layer, strings.Repeat("_reverse", dir))
			for row := range c.rows {
				at := ((layer*dirs+dir)*c.rows + row) * n
				for i := range c.end(row) {
					step := i
					if dir == 1 {
						step = c.end(row) - 1 - i
					}
					c.advance(key, in[(step*c.rows+row)*width:][:width], hidden[at:at+n], cell[at:at+n])
					copy(out[(step*c.rows+row)*dirs*n+dir*n:], hidden[at:at+n])
				}
			}
		}
		in, width = out, dirs*n
	}
	return out, hidden, cell
}

// advance replaces the states of one row by the next ones.
func (c *recurrentCase) advance(key string, in, h, s []float64) {
	term := func(kind string, row int, v []float64) float64 {
		sum := 0.0
		if b := c.values["bias_"+kind+key]; b != nil {
			sum = b[row]
		}
		for i, e := range v {
			sum += c.values["weight_"+kind+key][row*len(v)+i] * e
		}
		return sum
	}
	sigmoid := func(v float64) float64 { return 1 / (1 + math.Exp(-v)) }
	before := slices.Clone(h)
	both := func(gate, i int) float64 {
		return term("ih", gate*c.hidden+i, in) + term("hh", gate*c.hidden+i, before)
	}
	for i := range h {
		if c.gru {
			n := math.Tanh(term("ih", 2*c.hidden+i, in) + sigmoid(both(0, i))*term("hh", 2*c.hidden+i, before))
			z := sigmoid(both(1, i))
			h[i] = (1-z)*n + z*before[i]
			continue
		}
		s[i] = sigmoid(both(1, i))*s[i] + sigmoid(both(0, i))*math.Tanh(both(2, i))
		h[i] = sigmoid(both(3, i)) * math.Tanh(s[i])
	}
}

// loss weighs every element of the results differently.
func (c *recurrentCase) loss() float64 {
	out, hidden, cell := c.expected()
	sum := weighed(out, 1) + weighed(hidden, 2)
	if !c.gru {
		sum += weighed(cell, 3)
	}
	return sum
}

func weighed(v []float64, kind int) float64 {
	sum := 0.0
	for i, e := range v {
		sum += e * factor(i, kind)
	}
	return sum
}

func factor(i, kind int) float64 { return math.Sin(float64(kind + 3*i)) }

// fill gives every operand of names random values. What comes after the end of a row is not a number.
func (c *recurrentCase) fill(sizes map[string]int) {
	r := rand.New(rand.NewPCG(1, 2))
	c.values = map[string][]float64{}
	for _, name := range slices.Sorted(maps.Keys(sizes)) {
		v := make([]float64, sizes[name])
		for i := range v {
			v[i] = 2*r.Float64() - 1
			if row := i / c.in % c.rows; name == "in" && i/c.in/c.rows >= c.end(row) {
				v[i] = math.NaN()
			}
		}
		c.values[name] = v
	}
}

// recurrentForward runs a module and returns output and states; cell and its result are nil for a GRU.
type recurrentForward func(x *tenon.Exec, in, hidden, cell, lengths *tenon.Tensor) [3]*tenon.Tensor

// module returns c's module and a function that runs it.
func (c *recurrentCase) module(x *tenon.Exec) (m any, forward recurrentForward) {
	if c.gru {
		g := nn.NewGRU(x, c.in, c.hidden, c.opt)
		return g, func(x *tenon.Exec, in, hidden, _, lengths *tenon.Tensor) [3]*tenon.Tensor {
			out, last := g.Forward(x, in, nn.GRUForwardOpt{Hidden: hidden, Lengths: lengths})
			return [3]*tenon.Tensor{out, last}
		}
	}
	l := nn.NewLSTM(x, c.in, c.hidden, c.opt)
	return l, func(x *tenon.Exec, in, hidden, cell, lengths *tenon.Tensor) [3]*tenon.Tensor {
		out, last, lastCell := l.Forward(x, in, nn.LSTMForwardOpt{Hidden: hidden, Cell: cell, Lengths: lengths})
		return [3]*tenon.Tensor{out, last, lastCell}
	}
}

// operand returns values as a leaf of the shape, whose first two dimensions are swapped in memory if batchFirst says so.
func operand(x *tenon.Exec, values []float64, batchFirst bool, shape ...int) *tenon.Tensor {
	t := tenon.From(x, values, shape...)
	if batchFirst {
		t = x.Clone(x.Contiguous(x.Transpose(t, 0, 1)))
	}
	return t.SetRequiresGrad(true)
}

// timeFirst returns the elements of t in the order of [Time, Batch, …].
func timeFirst(t *testing.T, x *tenon.Exec, a *tenon.Tensor, batchFirst bool) []float64 {
	t.Helper()
	if batchFirst {
		a = x.Contiguous(x.Transpose(a, 0, 1))
	}
	v, err := tenon.Read[float64](x, a)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func wantNear(t *testing.T, what string, got, want []float64, tolerance float64) {
	t.Helper()
	if len(got) != len(want) {
		t.Errorf("%s: %d elements, want %d", what, len(got), len(want))
		return
	}
	for i, w := range want {
		if !(math.Abs(got[i]-w) <= tolerance) {
			t.Errorf("%s: element %d is %v, want %v", what, i, got[i], w)
			return
		}
	}
}

// run compares a forward and a backward pass with the expected numbers.
func (c *recurrentCase) run(t *testing.T, x *tenon.Exec) {
	c.opt.DType = tenon.Float64
	m, forward := c.module(x)
	defer nn.Close(m)
	states := []int{c.layers() * c.directions(), c.rows, c.hidden}
	inShape, count := []int{c.steps, c.rows, c.in}, states[0]*states[1]*states[2]
	sizes := map[string]int{"in": c.steps * c.rows * c.in, "Hidden": count, "Cell": count}
	for name, p := range nn.Params(m) {
		sizes[name] = p.Tensor().Numel()
	}
	c.fill(sizes)
	if c.single {
		inShape, states = slices.Delete(inShape, 1, 2), slices.Delete(states, 1, 2)
	}
	for name, p := range nn.Params(m) {
		x.NoGrad().CopyInto(p.Tensor(), tenon.From(x, c.values[name], p.Tensor().Shape()...))
	}
	in := operand(x, c.values["in"], c.opt.BatchFirst && !c.single, inShape...)
	var hidden, cell, lengths *tenon.Tensor
	if c.initial {
		hidden, cell = operand(x, c.values["Hidden"], false, states...), operand(x, c.values["Cell"], false, states...)
	}
	if c.lengths != nil {
		lengths = tenon.From(x, c.lengths)
	}
	results := forward(x, in, hidden, cell, lengths)
	out, last, lastCell := c.expected()
	total := x.Zeros(nil, tenon.Float64)
	for i, want := range [][]float64{out, last, lastCell}[:len(results)] {
		if r := results[i]; r != nil {
			swap := i == 0 && c.opt.BatchFirst && !c.single
			wantNear(t, []string{"output", "hidden", "cell"}[i], timeFirst(t, x, r, swap), want, 1e-12)
			factors := make([]float64, len(want))
			for j := range factors {
				factors[j] = factor(j, i+1)
			}
			if swap {
				r = x.Transpose(r, 0, 1)
			}
			total = x.Add(total, x.Sum(x.Mul(r, tenon.From(x, factors, r.Shape()...)), nil))
		}
	}
	if err := x.Backward(total); err != nil {
		t.Fatal(err)
	}
	compare := func(name string, grad *tenon.Tensor, swap bool) {
		if grad == nil {
			t.Errorf("%s has no gradient", name)
			return
		}
		v := c.values[name]
		want := make([]float64, len(v))
		for i, at := range v {
			const h = 1e-5
			v[i] = at + h
			want[i] = c.loss()
			v[i] = at - h
			want[i] = (want[i] - c.loss()) / (2 * h)
			v[i] = at
		}
		wantNear(t, "gradient of "+name, timeFirst(t, x, grad, swap), want, 1e-8)
	}
	for name, p := range nn.Params(m) {
		compare(name, p.Grad(), false)
	}
	compare("in", in.Grad(), c.opt.BatchFirst && !c.single)
	if c.initial {
		compare("Hidden", hidden.Grad(), false)
		if !c.gru {
			compare("Cell", cell.Grad(), false)
		}
	}
}

// Results and gradients are those of the formulas, computed in float64 one number at a time; gradients as differences.
func TestRecurrent(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		deep := nn.RecurrentOpt{NumLayers: 2, Bidirectional: true}
		first := nn.RecurrentOpt{NumLayers: 2, Bidirectional: true, BatchFirst: true}
		for _, c := range []recurrentCase{
			{name: "plain"},
			{name: "one step", steps: 1, rows: 1},
			{name: "no bias", opt: nn.RecurrentOpt{NoBias: true, BatchFirst: true}},
			{name: "three layers", opt: nn.RecurrentOpt{NumLayers: 3}, initial: true},
			{name: "deep", opt: deep, initial: true},
			{name: "lengths", opt: deep, initial: true, lengths: []int64{2, 4, 1}},
			{name: "batch first", opt: first, lengths: []int64{3, 0, 9}},
			{name: "batch first with states", opt: first, initial: true, lengths: []int64{3, 0, 9}},
			{name: "single row", opt: deep, initial: true, rows: 1, single: true},
			{name: "single row, batch first", opt: first, rows: 1, single: true, lengths: []int64{3}},
		} {
			for _, c.gru = range []bool{false, true} {
				t.Run(fmt.Sprintf("%s, gru %v", c.name, c.gru), func(t *testing.T) {
					c := c
					if c.rows == 0 {
						c.rows = 3
					}
					if c.steps == 0 {
						c.steps = 4
					}
					c.in, c.hidden = 3, 2
					x.Scope(func(x *tenon.Exec) { c.run(t, x) })
				})
			}
		}
	})
}

// trainRecurrent runs training steps of both modules, with lengths that change, and returns the bits of the last parameters.
func trainRecurrent(t *testing.T, x *tenon.Exec, do func(x *tenon.Exec, f func(x *tenon.Exec) error) error) (bits [][]float32) {
	g := nn.NewHostGenerator(1)
	opt := nn.RecurrentOpt{NumLayers: 2, Bidirectional: true, BatchFirst: true, Generator: g}
	m := []any{nn.NewLSTM(x, 3, 4, opt), nn.NewGRU(x, 8, 5, opt)}
	defer nn.Close(m)
	sgd, err := optim.NewSGD(nn.Params(m), optim.SGDOpt{LR: 0.5})
	if err != nil {
		t.Fatal(err)
	}
	defer sgd.Close()
	in, lengths := x.Empty([]int{3, 5, 3}, tenon.Float32), x.Zeros([]int{3}, tenon.Int64)
	for step := range 6 {
		nn.InitNormal(x, in, 0, 1, nn.InitOpt{Generator: g})
		x.CopyInto(lengths, tenon.From(x, []int64{5, int64(step), 2}))
		err := do(x, func(x *tenon.Exec) error {
			h, _, _ := m[0].(*nn.LSTM).Forward(x, in, nn.LSTMForwardOpt{Lengths: lengths})
			_, last := m[1].(*nn.GRU).Forward(x, h, nn.GRUForwardOpt{Lengths: lengths})
			sgd.ZeroGrad()
			if err := x.Backward(x.Sum(x.Mul(last, last), nil)); err != nil {
				return err
			}
			return sgd.Step(x)
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range nn.Params(m) {
		bits = append(bits, floats(t, x, p.Tensor()))
	}
	return bits
}

// In a compiled region training has the bits of the eager run, and later steps are replays, although the lengths change.
func TestRecurrentCompiled(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		eager := trainRecurrent(t, x, (*tenon.Exec).Do)
		region := compile.New()
		compiled := trainRecurrent(t, x, region.Do)
		for i := range eager {
			if !slices.Equal(eager[i], compiled[i]) {
				t.Fatalf("parameter %d is %v, eager %v", i, compiled[i], eager[i])
			}
		}
		if s := region.Stats(x); s.Replays < 3 && x.Device() != x.Host().Device() { // the processor has no graphs
			t.Errorf("%d of 6 steps were replays", s.Replays)
		}
		if err := compile.Reset(x); err != nil {
			t.Error(err)
		}
	})
}

// A graph of a module reads inputs and lengths anew at each replay.
func TestRecurrentCaptured(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		l := nn.NewLSTM(x, 2, 3, nn.RecurrentOpt{Bidirectional: true})
		defer nn.Close(l)
		in, lengths := x.RandN([]int{4, 2, 2}, tenon.Float32), tenon.From(x, []int64{4, 1})
		run := func(x *tenon.Exec) [3]*tenon.Tensor {
			out, hidden, cell := l.Forward(x.NoGrad(), in, nn.LSTMForwardOpt{Lengths: lengths})
			return [3]*tenon.Tensor{out, hidden, cell}
		}
		run(x)
		var captured [3]*tenon.Tensor
		g, err := x.Capture(func(x *tenon.Exec) { captured = run(x) })
		if err != nil {
			t.Fatal(err)
		}
		defer g.Close()
		for _, row := range [][]int64{{4, 1}, {2, 4}, {0, 3}} {
			x.CopyInto(in, x.RandN([]int{4, 2, 2}, tenon.Float32))
			x.CopyInto(lengths, tenon.From(x, row))
			if err := x.Replay(g); err != nil {
				t.Fatal(err)
			}
			for i, want := range run(x) {
				if got, want := floats(t, x, captured[i]), floats(t, x, want); !slices.Equal(got, want) {
					t.Errorf("lengths %v, result %d: got %v, want %v", row, i, got, want)
				}
			}
		}
	})
}

// Dropout lies between layers, in training only.
func TestRecurrentDropout(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		x = x.NoGrad()
		for _, gru := range []bool{false, true} {
			c := recurrentCase{gru: gru, in: 2, hidden: 8, opt: nn.RecurrentOpt{NumLayers: 2, Dropout: 1}}
			two, runTwo := c.module(x)
			c.opt = nn.RecurrentOpt{Dropout: 1}
			one, runOne := c.module(x)
			defer nn.Close([]any{one, two})
			a, b := x.RandN([]int{3, 2, 2}, tenon.Float32), x.RandN([]int{3, 2, 2}, tenon.Float32)
			alike := func(run recurrentForward) (out, first bool) {
				ra, rb := run(x, a, nil, nil, nil), run(x, b, nil, nil, nil)
				return slices.Equal(floats(t, x, ra[0]), floats(t, x, rb[0])),
					slices.Equal(floats(t, x, x.Select(ra[1], 0, 0)), floats(t, x, x.Select(rb[1], 0, 0)))
			}
			if out, first := alike(runTwo); !out || first {
				t.Errorf("gru %v: with the first layer's output dropped, other inputs give equal outputs: %v, and equal states of that "+
					"layer: %v", gru, out, first)
			}
			if out, _ := alike(runOne); out {
				t.Errorf("gru %v: a single layer drops", gru)
			}
			nn.Eval([]any{one, two})
			if out, _ := alike(runTwo); out {
				t.Errorf("gru %v: it drops in evaluation", gru)
			}
		}
		// All elements of the first layer's output are equal, and each is passed to one element of the second layer's.
		const wide = 500
		m := nn.NewLSTM(x, 2, wide, nn.RecurrentOpt{NumLayers: 2, Dropout: 0.25})
		defer nn.Close(m)
		for _, p := range nn.Params(m) {
			nn.InitConstant(x, p.Tensor(), 0)
		}
		nn.InitConstant(x, m.Weights[0][0].BiasIH.Tensor(), 1)
		eye := x.Empty([]int{wide, wide}, tenon.Float32)
		nn.InitEye(x, eye)
		x.IndexPutInto(m.Weights[1][0].WeightIH.Tensor(), eye, tenon.Span(2*wide, 3*wide))
		out, _, _ := m.Forward(x, x.RandN([]int{1, 1, 2}, tenon.Float32))
		dropped := 0
		for _, v := range floats(t, x, out) {
			if v == 0 {
				dropped++
			}
		}
		if dropped < 75 || dropped > 175 {
			t.Errorf("%d of %d elements were dropped, with probability 0.25", dropped, wide)
		}
	})
}

// Parameters have PyTorch's names and order, and its initial values with its generator.
func TestRecurrentNames(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		type net struct {
			Encoder *nn.LSTM `torch:"encoder"`
			Decoder *nn.GRU
		}
		m := &net{nn.NewLSTM(x, 2, 9, nn.RecurrentOpt{NumLayers: 2, Bidirectional: true, Generator: nn.NewHostGenerator(3)}),
			nn.NewGRU(x, 18, 2, nn.RecurrentOpt{NoBias: true, Generator: nn.NewHostGenerator(4), DType: tenon.Float64})}
		defer nn.Close(m)
		var got []string
		g, drawn := nn.NewHostGenerator(3), 0
		for name, p := range nn.Params(m) {
			got = append(got, fmt.Sprint(name, p.Tensor().Shape()))
			if p.Tensor().DType() == tenon.Float32 {
				want := x.Empty(p.Tensor().Shape(), tenon.Float32)
				nn.InitUniform(x, want, -1.0/3, 1.0/3, nn.InitOpt{Generator: g})
				if !slices.Equal(floats(t, x, p.Tensor()), floats(t, x, want)) {
					t.Errorf("%s has other initial values", name)
				}
				drawn++
			}
		}
		want := []string{
			"encoder.weight_ih_l0[36 2]", "encoder.weight_hh_l0[36 9]", "encoder.bias_ih_l0[36]", "encoder.bias_hh_l0[36]",
			"encoder.weight_ih_l0_reverse[36 2]", "encoder.weight_hh_l0_reverse[36 9]", "encoder.bias_ih_l0_reverse[36]",
			"encoder.bias_hh_l0_reverse[36]", "encoder.weight_ih_l1[36 18]", "encoder.weight_hh_l1[36 9]", "encoder.bias_ih_l1[36]",
			"encoder.bias_hh_l1[36]", "encoder.weight_ih_l1_reverse[36 18]", "encoder.weight_hh_l1_reverse[36 9]",
			"encoder.bias_ih_l1_reverse[36]", "encoder.bias_hh_l1_reverse[36]",
			"Decoder.weight_ih_l0[6 18]", "Decoder.weight_hh_l0[6 2]"}
		if !slices.Equal(got, want) || drawn != 16 {
			t.Errorf("got  %v\nwant %v", got, want)
		}
		state := maps.Collect(nn.StateDict(m))
		if len(state) != len(want) {
			t.Errorf("%d entries in the state dict", len(state))
		}
		zeros := map[string]*tenon.Tensor{}
		for name, s := range state {
			zeros[name] = x.Zeros(s.Shape(), tenon.Float32)
		}
		if err := nn.Load(x, m, zeros); err != nil {
			t.Fatal(err)
		}
		if v := floats(t, x, m.Encoder.Weights[1][1].BiasHH.Tensor()); slices.Max(v) != 0 || slices.Min(v) != 0 {
			t.Errorf("after Load: %v", v)
		}
		m.Encoder.Weights[1][1].WeightHH.Close()
		m.Encoder.Weights[1][1].WeightHH = m.Encoder.Weights[0][0].WeightHH
		for name := range nn.Params(m) {
			if name == "encoder.weight_hh_l1_reverse" {
				t.Error("a shared parameter came twice")
			}
			if name == "encoder.weight_hh_l0" {
				break // stops the walk
			}
		}
		wantError(t, func() {
			for range nn.StateDict(&struct {
				A *nn.LSTM  `torch:"a"`
				B *nn.Param `torch:"a.weight_hh_l1"`
			}{m.Encoder, m.Encoder.Weights[0][0].WeightHH}) {
			}
		}, "field A.Weights[1][0].WeightHH", "field B ", `"a.weight_hh_l1"`)
	})
}

// Under autocast the products and states have the low type, as those of Linear, and given states are converted.
func TestRecurrentAutocast(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for _, gru := range []bool{false, true} {
			c := recurrentCase{gru: gru, in: 3, hidden: 4, opt: nn.RecurrentOpt{NumLayers: 2}}
			m, forward := c.module(x)
			defer nn.Close(m)
			in, state := x.RandN([]int{3, 2, 3}, tenon.Float32), x.RandN([]int{2, 2, 4}, tenon.Float32)
			lengths := tenon.From(x, []int64{3, 2})
			want := forward(x, in, state, state, lengths)
			got := forward(x.Autocast(tenon.BFloat16), in, state, state, lengths)
			for i, r := range got {
				if r == nil {
					continue
				}
				if r.DType() != tenon.BFloat16 {
					t.Errorf("gru %v: result %d is %v", gru, i, r.DType())
				}
				w := floats(t, x, want[i])
				for j, v := range floats(t, x, x.ToDType(r, tenon.Float32)) {
					if math.Abs(float64(v-w[j])) > 0.05 {
						t.Errorf("gru %v: result %d is %v at %d, want %v", gru, i, v, j, w[j])
					}
				}
			}
			if err := x.Backward(x.Sum(x.ToDType(got[0], tenon.Float32), nil)); err != nil {
				t.Fatal(err)
			}
			for name, p := range nn.Params(m) {
				if p.Grad() == nil || p.Grad().DType() != tenon.Float32 {
					t.Errorf("gru %v: the gradient of %s is %v", gru, name, p.Grad())
				}
			}
			for _, states := range [][2]*tenon.Tensor{{got[1], got[2]}, {}} {
				for i, r := range forward(x.Autocast(tenon.BFloat16), in, states[0], states[1], lengths) {
					if r != nil && r.DType() != tenon.BFloat16 {
						t.Errorf("gru %v: from the states %v result %d is %v", gru, states, i, r.DType())
					}
				}
			}
		}
	})
}

// Without gradients only the results are left.
func TestRecurrentClosesTemporaries(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for _, gru := range []bool{false, true} {
			c := recurrentCase{gru: gru, in: 2, hidden: 3, opt: nn.RecurrentOpt{NumLayers: 2, Bidirectional: true, Dropout: 0.5}}
			m, forward := c.module(x)
			defer nn.Close(m)
			in, lengths := x.RandN([]int{4, 2, 2}, tenon.Float32), tenon.From(x, []int64{4, 1})
			results := 3
			if gru {
				results = 2
			}
			for _, of := range []*tenon.Tensor{nil, lengths} {
				before := testdevice.Storages()
				for _, r := range forward(x.NoGrad(), in, nil, nil, of) {
					defer r.Close()
				}
				if n := core.LiveStorages() - before; n != results {
					t.Errorf("gru %v: %d storages are live after it, want %d", gru, n, results)
				}
			}
		}
	})
}

func TestRecurrentRefusals(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		l := nn.NewLSTM(x, 3, 4, nn.RecurrentOpt{NumLayers: 2})
		g := nn.NewGRU(x, 3, 4, nn.RecurrentOpt{BatchFirst: true, Bidirectional: true})
		defer nn.Close([]any{l, g})
		zeros := func(shape ...int) *tenon.Tensor { return x.Zeros(shape, tenon.Float32) }
		in := zeros(5, 2, 3)
		for _, c := range []struct {
			says string
			f    func()
		}{
			{"NewLSTM: a layer from 0 to 4 features cannot be; give positive numbers", func() { nn.NewLSTM(x, 0, 4) }},
			{"NewGRU: a layer from 3 to -1 features cannot be", func() { nn.NewGRU(x, 3, -1) }},
			{"NewGRU: a layer from 3 to 9223372036854775807 features", func() { nn.NewGRU(x, 3, math.MaxInt) }},
			{"NewLSTM: -1 layers cannot be; give a NumLayers of 1 or more", func() { nn.NewLSTM(x, 3, 4, nn.RecurrentOpt{NumLayers: -1}) }},
			{"NewGRU: dropout probability has to be between 0 and 1, but got 1.5",
				func() { nn.NewGRU(x, 3, 4, nn.RecurrentOpt{Dropout: 1.5}) }},
			{"NewGRU: dropout probability has to be between 0 and 1, but got NaN",
				func() { nn.NewGRU(x, 3, 4, nn.RecurrentOpt{Dropout: math.NaN()}) }},
			{"NewLSTM: options are given 2 times; give one RecurrentOpt",
				func() { nn.NewLSTM(x, 3, 4, nn.RecurrentOpt{}, nn.RecurrentOpt{}) }},
			{"LSTM: the *nn.LSTM is nil; use one that its New function returned", func() { (*nn.LSTM)(nil).Forward(x, in) }},
			{"GRU: the *nn.GRU is nil; use one that its New function returned", func() { (*nn.GRU)(nil).Training() }},
			{"LSTM: the module is a zero value; use one that NewLSTM returned", func() { new(nn.LSTM).Forward(x, in) }},
			{"GRU: the module is a zero value; use one that NewGRU returned", func() { new(nn.GRU).Forward(x, in) }},
			{"LSTM: operand 0 is nil", func() { l.Forward(x, nil) }},
			{"LSTM: the input has shape [3]; give [Time, Batch, In], or [Time, In] for a single row", func() { l.Forward(x, zeros(3)) }},
			{"GRU: the input has shape [1 1 2 3]; give [Batch, Time, In], or", func() { g.Forward(x, zeros(1, 1, 2, 3)) }},
			{"LSTM: the input of shape [0 2 3] has no time step; give at least one", func() { l.Forward(x, zeros(0, 2, 3)) }},
			{"GRU: the input of shape [2 0 3] has no time step", func() { g.Forward(x, zeros(2, 0, 3)) }},
			{"LSTM: the input of shape [5 2 4] has 4 features, but the module takes 3; give [Time, Batch, In]",
				func() { l.Forward(x, zeros(5, 2, 4)) }},
			{"LSTM: the input is float64, but the parameters are float32; convert it with x.ToDType, or them with nn.ToDType",
				func() { l.Forward(x, x.Zeros([]int{5, 2, 3}, tenon.Float64)) }},
			{"LSTM: Hidden has shape [2 5 4]; give [2 2 4], a state for each layer and direction",
				func() { l.Forward(x, in, nn.LSTMForwardOpt{Hidden: zeros(2, 5, 4)}) }},
			{"LSTM: Cell has shape [2 2 4]; give [2 4], a state for each layer and direction",
				func() { l.Forward(x, zeros(5, 3), nn.LSTMForwardOpt{Cell: zeros(2, 2, 4)}) }},
			{"GRU: Hidden is float64, but the input is float32; convert it with x.ToDType",
				func() { g.Forward(x, in, nn.GRUForwardOpt{Hidden: x.Zeros([]int{2, 5, 4}, tenon.Float64)}) }},
			{"GRU: Lengths is float32 of shape [5]; give integers of shape [5], one for each row",
				func() { g.Forward(x, in, nn.GRUForwardOpt{Lengths: zeros(5)}) }},
			{"LSTM: Lengths is int64 of shape [5]; give integers of shape [2], one for each row",
				func() { l.Forward(x, in, nn.LSTMForwardOpt{Lengths: x.Zeros([]int{5}, tenon.Int64)}) }},
			{"GRU: options are given 2 times; give one GRUForwardOpt", func() { g.Forward(x, in, nn.GRUForwardOpt{}, nn.GRUForwardOpt{}) }},
		} {
			wantError(t, c.f, c.says)
		}
		closed := zeros(2, 2, 4)
		closed.Close()
		err := tenon.Try(func() { l.Forward(x, in, nn.LSTMForwardOpt{Hidden: closed}) })
		if fault.KindOf(err) != fault.Closed || !strings.HasPrefix(err.Error(), "LSTM: ") {
			t.Errorf("a closed state: %v", err)
		}
		g.Weights[0], l.Weights = g.Weights[0][:1], append(l.Weights, nil)
		wantError(t, func() { g.Forward(x, in) }, "GRU: Weights does not have an element for each of 2 directions")
		wantError(t, func() { l.Forward(x, in) }, "in each of 2 lists, as NewLSTM made it; replace only parameters")
		g.Weights[0] = g.Weights[0][:2]
	})
}

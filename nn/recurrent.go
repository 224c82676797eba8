package nn

import (
	"math"
	"slices"
	"strconv"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// RecurrentOpt are the options of NewLSTM and NewGRU. The zero value is PyTorch's default.
type RecurrentOpt struct {
	// NumLayers is the number of layers, each of which reads the output of the one below; 0 is 1.
	NumLayers int
	// NoBias leaves the biases out.
	NoBias bool
	// BatchFirst swaps the first two dimensions of input and output, which are then [Batch, Time, …]. It does not change the states.
	BatchFirst bool
	// Dropout is the probability with which training drops each element of the output of every layer but the last.
	Dropout float64
	// Bidirectional adds to each layer a second direction, which reads the input from its end. The outputs of both are concatenated.
	Bidirectional bool
	// DType is the parameters' type; 0 is Float32.
	DType tenon.DType
	// Generator draws the initial values; nil is x's own generator, on the device.
	Generator *HostGenerator
}

// RecurrentWeights are the parameters of one direction of one layer. A layer has Gates·Hidden rows: 4 gates for each hidden feature in an
// LSTM, 3 in a GRU. In a state dict their names end with the indexes of the layer and direction: weight_ih_l0, weight_hh_l0, bias_ih_l0 and
// bias_hh_l0, and weight_ih_l0_reverse for the second direction.
type RecurrentWeights struct {
	// WeightIH is [Gates·Hidden, In] and WeightHH [Gates·Hidden, Hidden]. In is the number of features of the layer's input: above the
	// first layer it is Hidden, or 2·Hidden if the layers have two directions.
	WeightIH, WeightHH *Param
	// BiasIH and BiasHH are [Gates·Hidden], or nil for none.
	BiasIH, BiasHH *Param
}

// cell is what makes a recurrent module an LSTM or a GRU.
type cell struct {
	name  string
	gates int
	// states are the names of the options that hold the initial states; the first state is also the output.
	states []string
	// sums says that the next states depend on the sum of the two biases alone.
	sums bool
	// next returns the states after a step: input is [Batch, Gates·Hidden] of the product of the inputs, hidden that of the state.
	next func(x *tenon.Exec, input, hidden *tenon.Tensor, states []*tenon.Tensor) []*tenon.Tensor
}

// recurrent is what LSTM and GRU have in common.
type recurrent struct {
	cell       *cell
	in, hidden int
	opt        RecurrentOpt
}

// newRecurrent checks the options and returns the initial parameters, drawn in PyTorch's order.
func newRecurrent(x *tenon.Exec, c *cell, in, hidden int, opt RecurrentOpt) (recurrent, [][]RecurrentWeights) {
	switch op := "New" + c.name; {
	case in < 1 || hidden < 1 || hidden > math.MaxInt/c.gates:
		fail(op, "a layer from %d to %d features cannot be; give positive numbers", in, hidden)
	case opt.NumLayers < 0:
		fail(op, "%d layers cannot be; give a NumLayers of 1 or more", opt.NumLayers)
	case !(0 <= opt.Dropout && opt.Dropout <= 1):
		fail(op, "dropout probability has to be between 0 and 1, but got %v", opt.Dropout)
	}
	opt.NumLayers = max(opt.NumLayers, 1)
	r := recurrent{cell: c, in: in, hidden: hidden, opt: opt}
	l, rows, bound := layer{opt.DType, opt.Generator}, c.gates*hidden, 1/math.Sqrt(float64(hidden))
	var all [][]RecurrentWeights
	for range opt.NumLayers {
		directions := make([]RecurrentWeights, r.directions())
		for i := range directions {
			w := &directions[i]
			w.WeightIH, w.WeightHH = l.param(x, bound, rows, in), l.param(x, bound, rows, hidden)
			if !opt.NoBias {
				w.BiasIH, w.BiasHH = l.param(x, bound, rows), l.param(x, bound, rows)
			}
		}
		all = append(all, directions)
		in = len(directions) * hidden
	}
	return r, all
}

func (r *recurrent) directions() int {
	if r.opt.Bidirectional {
		return 2
	}
	return 1
}

// options returns the module's options in PyTorch's words, without those that have its default.
func (r *recurrent) options() string {
	s := strconv.Itoa(r.in) + ", " + strconv.Itoa(r.hidden)
	add := func(given bool, name, value string) {
		if given {
			s += ", " + list(name, value)
		}
	}
	add(r.opt.NumLayers > 1, "num_layers", strconv.Itoa(r.opt.NumLayers))
	add(r.opt.NoBias, "bias", core.Truth(false))
	add(r.opt.BatchFirst, "batch_first", core.Truth(true))
	add(r.opt.Dropout != 0, "dropout", core.Decimal(r.opt.Dropout))
	add(r.opt.Bidirectional, "bidirectional", core.Truth(true))
	return s
}

// forward returns the last layer's output and the final states. A start that is nil stands for zeros.
func (r *recurrent) forward(x *tenon.Exec, weights [][]RecurrentWeights, training bool, in, lengths *tenon.Tensor,
	starts ...*tenon.Tensor) []*tenon.Tensor {
	p := pass{recurrent: r, training: training, starts: starts}
	if r.opt.BatchFirst {
		p.time = 1
	}
	single := p.check(x, weights, in, lengths)
	return x.WithinMany(func(x *tenon.Exec) []*tenon.Tensor {
		if single {
			in = x.Unsqueeze(in, 1-p.time)
			for i, s := range starts {
				if s != nil {
					starts[i] = x.Unsqueeze(s, 1)
				}
			}
		}
		if lengths != nil {
			p.past = x.Unsqueeze(p.after(x, in.Size(p.time), lengths), -1)
			in = x.MaskedFillS(in, p.past, 0) // what a NaN there multiplies is a gradient of 0
		}
		results := p.layers(x, weights, in)
		if single {
			results[0] = x.Squeeze(results[0], 1-p.time)
			for i := range starts {
				results[1+i] = x.Squeeze(results[1+i], 1)
			}
		}
		return results
	})
}

// pass is a call of a recurrent module.
type pass struct {
	*recurrent
	training bool
	// time is the dimension of the input that is the time; the batch is the other one of the first two.
	time int
	// starts are the initial states, [Layers·Directions, Batch, Hidden], or nil.
	starts []*tenon.Tensor
	// past has the shape of the input with one feature, and is true after the end of a row; nil if all rows have the same length.
	past *tenon.Tensor
}

// check stops if the operands do not fit the module, and reports whether the input is a single row, without the dimension of the batch.
func (p *pass) check(x *tenon.Exec, weights [][]RecurrentWeights, in, lengths *tenon.Tensor) (single bool) {
	name, takes := p.cell.name, [...]string{"[Time, Batch, In]", "[Batch, Time, In]"}[p.time]
	whole := len(weights) == p.opt.NumLayers
	for _, directions := range weights {
		whole = whole && len(directions) == p.directions()
	}
	if !whole {
		fail(name, "Weights does not have an element for each of %d directions in each of %d lists, as New%s made it; replace only "+
			"parameters in it", p.directions(), p.opt.NumLayers, name)
	}
	core.Given(name, 0, (*core.Tensor)(in))
	if in.Dim() != 2 && in.Dim() != 3 {
		fail(name, "the input has shape %v; give %s, or [Time, In] for a single row", in.Shape(), takes)
	}
	steps, rows, single := in.Size(0), 1, in.Dim() == 2
	if !single {
		steps, rows = in.Size(p.time), in.Size(1-p.time)
	}
	if steps == 0 {
		fail(name, "the input of shape %v has no time step; give at least one", in.Shape())
	}
	if n := in.Size(-1); n != p.in {
		fail(name, "the input of shape %v has %d features, but the module takes %d; give %s", in.Shape(), n, p.in, takes)
	}
	want := []int{p.opt.NumLayers * p.directions(), rows, p.hidden}
	if single {
		want = slices.Delete(want, 1, 2)
	}
	convert := x.AutocastDType() != 0
	if w := weights[0][0].WeightIH.Tensor(); !convert && w != nil && in.DType() != w.DType() {
		fail(name, "the input is %v, but the parameters are %v; convert it with x.ToDType, or them with nn.ToDType", in.DType(), w.DType())
	}
	for i, s := range p.starts {
		if s == nil {
			continue
		}
		core.Given(name, 1+i, (*core.Tensor)(s))
		switch option := p.cell.states[i]; {
		case !slices.Equal(s.Shape(), want):
			fail(name, "%s has shape %v; give %v, a state for each layer and direction", option, s.Shape(), want)
		case !convert && s.DType() != in.DType():
			fail(name, "%s is %v, but the input is %v; convert it with x.ToDType", option, s.DType(), in.DType())
		}
	}
	if lengths != nil {
		core.Given(name, 1+len(p.starts), (*core.Tensor)(lengths))
		if !lengths.DType().IsInt() || !slices.Equal(lengths.Shape(), []int{rows}) {
			fail(name, "Lengths is %v of shape %v; give integers of shape [%d], one for each row", lengths.DType(), lengths.Shape(), rows)
		}
	}
	return single
}

// after returns, in the layout of the input without features, whether a step comes after the end of its row.
func (p *pass) after(x *tenon.Exec, steps int, lengths *tenon.Tensor) *tenon.Tensor {
	step := x.Arange(float64(steps), tenon.Int64)
	if p.time == 0 {
		return x.Ge(x.Unsqueeze(step, 1), lengths)
	}
	return x.Ge(step, x.Unsqueeze(lengths, 1))
}

// layers runs one layer after another, and returns the last one's output and the final states of all.
func (p *pass) layers(x *tenon.Exec, weights [][]RecurrentWeights, in *tenon.Tensor) []*tenon.Tensor {
	lasts := make([][]*tenon.Tensor, len(p.starts))
	for layer, directions := range weights {
		if layer > 0 && p.training && p.opt.Dropout > 0 {
			in = x.Dropout(in, p.opt.Dropout)
		}
		var outs []*tenon.Tensor
		for i, w := range directions {
			starts := make([]*tenon.Tensor, len(p.starts))
			for j, s := range p.starts {
				if s != nil {
					starts[j] = x.Select(s, 0, layer*len(directions)+i)
				}
			}
			results := x.WithinMany(func(x *tenon.Exec) []*tenon.Tensor { return p.direction(x, w, in, starts, i == 1) })
			outs = append(outs, results[0])
			for j, s := range results[1:] {
				lasts[j] = append(lasts[j], s)
			}
		}
		if in = outs[0]; len(outs) > 1 {
			in = x.Cat(outs, 2)
		}
	}
	results := []*tenon.Tensor{in}
	for _, s := range lasts {
		results = append(results, x.Stack(s, 0))
	}
	return results
}

// direction runs one direction of a layer, and returns its output and final states.
func (p *pass) direction(x *tenon.Exec, w RecurrentWeights, in *tenon.Tensor, states []*tenon.Tensor, reverse bool) []*tenon.Tensor {
	biasIH, biasHH := w.BiasIH.Tensor(), w.BiasHH.Tensor()
	if p.cell.sums && biasIH != nil && biasHH != nil {
		biasIH, biasHH = x.Add(biasIH, biasHH), nil // added to all steps at once
	}
	product := x.Linear(in, w.WeightIH.Tensor(), biasIH)
	inputs, weight := x.Unbind(product, p.time), w.WeightHH.Tensor()
	var past []*tenon.Tensor
	if p.past != nil {
		past = x.Unbind(p.past, p.time)
	}
	for i, s := range states {
		if s == nil {
			states[i] = x.Zeros([]int{in.Size(1 - p.time), p.hidden}, product.DType())
		} else {
			states[i] = x.ToDType(s, product.DType()) // converts under autocast only
		}
	}
	outs := make([]*tenon.Tensor, len(inputs))
	for i := range inputs {
		if reverse {
			i = len(inputs) - 1 - i
		}
		states = x.WithinMany(func(x *tenon.Exec) []*tenon.Tensor {
			next := p.cell.next(x, inputs[i], x.Linear(states[0], weight, biasHH), states)
			if past != nil {
				for j := range next {
					next[j] = x.Where(past[i], states[j], next[j])
				}
			}
			return next
		})
		outs[i] = states[0]
	}
	out := x.Stack(outs, p.time)
	if p.past != nil {
		out = x.MaskedFillS(out, p.past, 0)
	}
	return append([]*tenon.Tensor{out}, states...)
}

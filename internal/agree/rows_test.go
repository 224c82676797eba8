package agree

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/internal/kernels"
)

// rowTypes are the types of rows: real floats.
var rowTypes = []dtype.DType{dtype.Float32, dtype.Float64, dtype.Float16, dtype.BFloat16}

// rowShape is a matrix of rows or, with columns set, of columns to go along.
type rowShape struct {
	name    string
	shape   []int
	dim     int
	v       view
	index32 int
}

// rowShapes reach every way in which threads share rows: groups of 32 and blocks that hold the row, blocks that read it again, one thread
// per row.
var rowShapes = []rowShape{
	{name: "short", shape: []int{70, 64}, dim: 1},
	{name: "odd", shape: []int{33, 77}, dim: 1, v: padded},
	{name: "shifted", shape: []int{9, 1000}, dim: 1, v: shifted},
	{name: "held", shape: []int{40, 1024}, dim: 1},
	{name: "held_part", shape: []int{11, 900}, dim: 1},
	{name: "block", shape: []int{5, 4096}, dim: 1, v: aligned},
	{name: "read_again", shape: []int{3, 20003}, dim: 1},
	{name: "columns", shape: []int{50, 37}, dim: 0},
	{name: "middle", shape: []int{6, 30, 8}, dim: 1},
	{name: "turned", shape: []int{12, 5, 40}, dim: 2, v: turned},
	{name: "one", shape: []int{1, 300}, dim: 1},
	{name: "single", shape: []int{30, 1}, dim: 1},
	{name: "nothing", shape: []int{0, 8}, dim: 1},
	{name: "far", shape: []int{40, 96}, dim: 1, index32: 500},
	{name: "far_again", shape: []int{2, 20003}, dim: 1, index32: 500},
	{name: "six", shape: []int{2, 3, 2, 3, 2, 20}, dim: 5, v: turned},
}

// softmaxes tries the four functions of softmax.
func softmaxes(p *pair) {
	for _, t := range rowTypes {
		for _, s := range rowShapes {
			for _, log := range []bool{false, true} {
				name := fmt.Sprintf("%v %v %s", log, t, s.name)
				p.try(trial{name: "softmax " + name, index32: s.index32,
					arrays: []*array{out(t, dense, s.shape...), in(t, s.v, spotted, s.shape...)},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.Softmax(is, log, t, o[0], o[1], s.dim)
					}})
				p.try(trial{name: "softmax backward " + name, index32: s.index32,
					arrays: []*array{out(t, s.v, s.shape...), in(t, dense, mild, s.shape...), in(t, s.v, spotted, s.shape...)},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.SoftmaxBackward(is, log, t, o[0], o[1], o[2], s.dim)
					}})
			}
		}
	}
}

// wide is the type of the statistics of inputs of type t.
func wide(t dtype.DType) dtype.DType {
	if t == dtype.Float64 {
		return t
	}
	return dtype.Float32
}

// optionally returns a if yes, else no array.
func optionally(yes bool, a *array) *array {
	if yes {
		return a
	}
	return absent
}

// norms tries layer norm and RMS norm, with and without weight and bias, and their gradients.
func norms(p *pair) {
	for _, t := range rowTypes {
		for _, s := range rowShapes {
			if len(s.shape) != 2 || s.dim != 1 {
				continue
			}
			rows, n, w := s.shape[0], s.shape[1], wide(t)
			for _, affine := range []bool{false, true} {
				name := fmt.Sprintf("%v %v %s", affine, t, s.name)
				x, dy := in(t, s.v, mild, rows, n), in(t, dense, mild, rows, n)
				weight, bias := optionally(affine, in(t, dense, mild, n)), optionally(affine, in(t, dense, mild, n))
				p.try(trial{name: "norm layer " + name, index32: s.index32, arrays: []*array{out(t, s.v, rows, n), out(w, dense, rows),
					out(w, dense, rows), x, weight, bias},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.LayerNorm(is, t, o[0], o[1], o[2], o[3], o[4], o[5], 1e-5)
					}})
				p.try(trial{name: "norm rms " + name, index32: s.index32,
					arrays: []*array{out(t, s.v, rows, n), out(w, dense, rows), x, weight},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.RMSNorm(is, t, o[0], o[1], o[2], o[3], 1e-5)
					}})
				mean, rstd := in(w, dense, mild, rows), in(w, dense, positive, rows)
				dw, db := optionally(affine, out(t, dense, n)), optionally(affine, out(t, dense, n))
				p.try(trial{name: "norm layer_backward " + name, index32: s.index32, arrays: []*array{out(t, dense, rows, n), dw, db, dy,
					x, mean, rstd, weight},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.LayerNormBackward(is, t, o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7])
					}})
				p.try(trial{name: "norm rms_backward " + name, index32: s.index32,
					arrays: []*array{out(t, dense, rows, n), dw, dy, x, rstd, weight},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.RMSNormBackward(is, t, o[0], o[1], o[2], o[3], o[4], o[5])
					}})
			}
		}
	}
}

// normSums tries the gradients of layer norm and RMS norm of as many rows as one kernel takes with the sums over them.
func normSums(p *pair) {
	for i, size := range [][2]int{{4300, 40}, {4230, 33}, {1060, 2048}, {1057, 3001}} {
		rows, n, t := size[0], size[1], rowTypes[i%len(rowTypes)]
		w := wide(t)
		arrays := func(outs ...*array) []*array {
			return append(append([]*array{out(t, dense, rows, n)}, outs...), in(t, dense, mild, rows, n), in(t, dense, mild, rows, n))
		}
		mean, rstd, weight := in(w, dense, mild, rows), in(w, dense, positive, rows), in(t, dense, mild, n)
		for _, missing := range []int{-1, 0, 1} {
			dw, db := optionally(missing != 0, out(w, dense, n)), optionally(missing != 1, out(w, dense, n))
			p.try(trial{name: fmt.Sprintf("norm layer_backward %d rows of %d, without %d", rows, n, missing),
				arrays: append(arrays(dw, db), mean, rstd, weight),
				run: func(is kernels.Issuer, o []kernels.Operand) error {
					return kernels.LayerNormBackward(is, t, o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7])
				}})
		}
		p.try(trial{name: fmt.Sprintf("norm rms_backward %d rows of %d", rows, n), arrays: append(arrays(out(w, dense, n)), rstd, weight),
			run: func(is kernels.Issuer, o []kernels.Operand) error {
				return kernels.RMSNormBackward(is, t, o[0], o[1], o[2], o[3], o[4], o[5])
			}})
	}
}

// channelNorms tries batch norm and group norm.
func channelNorms(p *pair) {
	shapes := []rowShape{
		{name: "images", shape: []int{6, 12, 5, 7}},
		{name: "rows", shape: []int{300, 12}},
		{name: "large", shape: []int{4, 12, 40, 40}},
		{name: "channels_last", shape: []int{6, 12, 5, 7}, v: turned},
		{name: "far", shape: []int{6, 12, 5, 7}, index32: 200},
	}
	for _, t := range rowTypes {
		for _, s := range shapes {
			c, w := s.shape[1], wide(t)
			name := fmt.Sprintf("%v %s", t, s.name)
			x, dy := in(t, s.v, mild, s.shape...), in(t, dense, mild, s.shape...)
			mean, rstd := in(w, dense, mild, c), in(w, dense, positive, c)
			p.try(trial{name: "norm batch_stats " + name, index32: s.index32, arrays: []*array{out(w, dense, c), out(w, dense, c),
				out(w, dense, c), x},
				run: func(is kernels.Issuer, o []kernels.Operand) error {
					return kernels.BatchNormStats(is, t, o[0], o[1], o[2], o[3], 1e-5)
				}})
			p.try(trial{name: "norm batch_gather " + name, index32: s.index32,
				arrays: []*array{out(w, dense, c), out(w, dense, c), out(w, dense, c),
					in(t, s.v, mild, s.shape[0], c), in(t, dense, positive, s.shape[0], c), in(w, innerRepeated, positive, s.shape[0], c)},
				run: func(is kernels.Issuer, o []kernels.Operand) error {
					return kernels.BatchNormGather(is, t, o[0], o[1], o[2], o[3], o[4], o[5], 1e-5)
				}})
			for _, affine := range []bool{false, true} {
				weight, bias := optionally(affine, in(t, dense, mild, c)), optionally(affine, in(t, dense, mild, c))
				name := fmt.Sprintf("%v %s", affine, name)
				p.try(trial{name: "norm batch " + name, index32: s.index32, arrays: []*array{out(t, s.v, s.shape...), x, mean,
					rstd, weight, bias},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.BatchNorm(is, t, o[0], o[1], o[2], o[3], o[4], o[5])
					}})
				p.try(trial{name: "norm batch_inference " + name, index32: s.index32, arrays: []*array{out(t, s.v, s.shape...), x, mean,
					rstd, weight, bias},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.BatchNormInference(is, t, o[0], o[1], o[2], o[3], o[4], o[5], 1e-5)
					}})
				p.try(trial{name: "norm batch_backward " + name, index32: s.index32, arrays: []*array{out(t, s.v, s.shape...),
					out(w, dense, c), out(w, dense, c), dy, x, mean, rstd, weight},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						if err := kernels.BatchNormSums(is, t, o[1], o[2], o[3], o[4], o[5], o[6]); err != nil {
							return err
						}
						share := float64(c) / float64(o[4].Numel())
						return kernels.BatchNormGrad(is, t, o[0], o[3], o[4], o[5], o[6], o[7], o[1], o[2], share)
					}})
				if s.v != dense {
					continue
				}
				batch, places := s.shape[0], 1
				for _, n := range s.shape[2:] {
					places *= n
				}
				dw, db := optionally(affine, out(t, dense, c)), optionally(affine, out(t, dense, c))
				m, r := in(w, dense, mild, batch, 3), in(w, dense, positive, batch, 3)
				p.try(trial{name: "norm group " + name, index32: s.index32,
					arrays: []*array{out(w, dense, batch, 3), out(w, dense, batch, 3), x},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						view := func(o kernels.Operand, shape ...int) kernels.Operand {
							o.Shape, o.Stride = shape, []int{shape[1] * shape[2] * shape[3], shape[2] * shape[3], shape[3], 1}
							return o
						}
						return kernels.GroupNormStats(is, t, view(o[0], batch, 3, 1, 1), view(o[1], batch, 3, 1, 1),
							view(o[2], batch, 3, c/3, places), 1e-5)
					}})
				p.try(trial{name: "norm group_backward last " + name, index32: s.index32,
					arrays: []*array{out(t, dense, s.shape...), dw, db, dy, x, m, r, weight},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						for _, i := range []int{0, 3, 4} {
							o[i].Shape, o[i].Stride = []int{batch, 3, c / 3, places}, []int{c * places, c / 3, 1, c}
						}
						return kernels.GroupNormBackward(is, t, batch, c, places, 3, o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7])
					}})
				p.try(trial{name: "norm group_backward " + name, index32: s.index32, arrays: []*array{out(t, dense, s.shape...), dw, db,
					dy, x, m, r, weight},
					run: func(is kernels.Issuer, o []kernels.Operand) error {
						return kernels.GroupNormBackward(is, t, batch, c, places, 3, o[0], o[1], o[2], o[3], o[4], o[5], o[6], o[7])
					}})
			}
			run := []*array{out(w, dense, c), out(w, dense, c), mean, rstd}
			p.try(trial{name: "norm running " + name, arrays: run, run: func(is kernels.Issuer, o []kernels.Operand) error {
				return kernels.BatchNormUpdate(is, o[0], o[1], o[2], o[3], 0.1)
			}})
		}
	}
}

// Misuse makes the mistakes that beginners make and prints the error of each, on a simulated device. No mistake stops the program, loses
// the device or changes a tensor, so that all of them share one.
//
//	go run ./examples/misuse
//	go run ./examples/misuse -only capture
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"math"
	"os"
	"strings"

	"tenon.dev"
	"tenon.dev/data"
	"tenon.dev/nn"
	"tenon.dev/optim"
	"tenon.dev/torchfile"
)

// mistake is a wrong call. It panics with an error, as operations do, or returns one; it returns anything else if nothing is wrong with it.
type mistake struct {
	name string
	make func(x *tenon.Exec) any
}

func ones(x *tenon.Exec, shape ...int) *tenon.Tensor { return x.Ones(shape, tenon.Float32) }

func whole(x *tenon.Exec, shape ...int) *tenon.Tensor { return x.Zeros(shape, tenon.Int64) }

func leaf(x *tenon.Exec, shape ...int) *tenon.Tensor { return ones(x, shape...).SetRequiresGrad(true) }

// failed drops the result of a call that also returns an error.
func failed[T any](_ T, err error) error { return err }

// closed returns a tensor that was closed.
func closed(x *tenon.Exec) *tenon.Tensor {
	t := ones(x, 3)
	t.Close()
	return t
}

// scoped returns a tensor whose scope has ended.
func scoped(x *tenon.Exec, f func(x *tenon.Exec) *tenon.Tensor) (t *tenon.Tensor) {
	x.Scope(func(x *tenon.Exec) { t = f(x) })
	return t
}

var mistakes = []mistake{
	// Shapes.
	{"shapes of a product", func(x *tenon.Exec) any { return x.MatMul(ones(x, 2, 3), ones(x, 4, 5)) }},
	{"shapes of a layer", func(x *tenon.Exec) any { return nn.Scoped(x, nn.NewLinear(x, 3, 4)).Forward(x, ones(x, 2, 5)) }},
	{"channels", func(x *tenon.Exec) any {
		return nn.Scoped(x, nn.NewConv2d(x, 3, 4, [2]int{3, 3})).Forward(x, ones(x, 2, 4, 8, 8))
	}},
	{"kernel beyond the image", func(x *tenon.Exec) any {
		return nn.Scoped(x, nn.NewConv2d(x, 3, 4, [2]int{5, 5})).Forward(x, ones(x, 3, 2, 2))
	}},
	{"shapes of a sum", func(x *tenon.Exec) any { return x.Add(ones(x, 2, 3), ones(x, 2, 4)) }},
	{"size of a view", func(x *tenon.Exec) any { return x.View(ones(x, 2, 3), 4, 2) }},
	{"view of a transpose", func(x *tenon.Exec) any { return x.View(x.Transpose(ones(x, 2, 3), 0, 1), 6) }},
	{"shapes put together", func(x *tenon.Exec) any { return x.Cat([]*tenon.Tensor{ones(x, 2, 3), ones(x, 2, 4)}, 0) }},
	{"dimension of a sum", func(x *tenon.Exec) any { return x.Sum(ones(x, 2), []int{3}) }},
	{"number of values", func(x *tenon.Exec) any { return tenon.From(x, []float32{1, 2, 3}, 2, 2) }},
	{"negative size", func(x *tenon.Exec) any { return ones(x, -2) }},
	{"overflowing size", func(x *tenon.Exec) any { return ones(x, 1<<40, 1<<40) }},
	{"letters of einsum", func(x *tenon.Exec) any { return x.Einsum("ij,jk->il", ones(x, 2, 3), ones(x, 3, 4)) }},
	{"item of many", func(x *tenon.Exec) any { return failed(x.Item(ones(x, 3))) }},
	{"more draws than numbers", func(x *tenon.Exec) any { return x.Multinomial(ones(x, 2), 5) }},

	// Types and values.
	{"type that is read", func(x *tenon.Exec) any { return failed(tenon.Read[float64](x, ones(x, 3))) }},
	{"no type", func(x *tenon.Exec) any { return x.Zeros([]int{2}, 0) }},
	{"index of float", func(x *tenon.Exec) any { return nn.Scoped(x, nn.NewEmbedding(x, 4, 4)).Forward(x, ones(x, 2)) }},
	{"classes of float", func(x *tenon.Exec) any { return x.CrossEntropy(ones(x, 2, 3), ones(x, 2)) }},
	{"targets of another shape", func(x *tenon.Exec) any { return x.BCEWithLogits(ones(x, 2), ones(x, 3)) }},
	{"product of two types", func(x *tenon.Exec) any { return x.MatMul(x.Ones([]int{2, 2}, tenon.Float16), ones(x, 2, 2)) }},
	{"mask of float", func(x *tenon.Exec) any { return x.MaskedFillS(ones(x, 2), ones(x, 2), 0) }},
	{"condition of float", func(x *tenon.Exec) any { return x.Where(ones(x, 2), ones(x, 2), ones(x, 2)) }},
	{"softmax of int", func(x *tenon.Exec) any { return x.Softmax(whole(x, 2), 0) }},
	{"mean of int", func(x *tenon.Exec) any { return x.Mean(whole(x, 2), nil) }},
	{"NaN as int", func(x *tenon.Exec) any { return x.Full([]int{2}, math.NaN(), tenon.Int64) }},
	{"number beyond float16", func(x *tenon.Exec) any { return x.Full([]int{2}, 1e10, tenon.Float16) }},
	{"index out of range", func(x *tenon.Exec) any {
		return failed(x.Item(x.IndexSelect(ones(x, 3), 0, tenon.From(x, []int64{7}))))
	}},

	// Lives of tensors.
	{"no tensor", func(x *tenon.Exec) any { return x.Add(nil, ones(x, 3)) }},
	{"no weight", func(x *tenon.Exec) any { return x.Linear(ones(x, 2, 3), nil, nil) }},
	{"closed tensor", func(x *tenon.Exec) any { return x.Neg(closed(x)) }},
	{"tensor of an ended scope", func(x *tenon.Exec) any {
		return x.Neg(scoped(x, func(x *tenon.Exec) *tenon.Tensor { return ones(x, 3) }))
	}},
	{"tensor of the host", func(x *tenon.Exec) any { return x.Add(ones(x, 3), ones(x.Host(), 3)) }},
	{"tensor of another device", func(x *tenon.Exec) any {
		y, err := tenon.Open(tenon.Sim(0))
		if err != nil {
			return err
		}
		defer y.Close()
		return x.Add(ones(x, 3), ones(y, 3))
	}},
	{"more than the memory", func(x *tenon.Exec) any { return ones(x, 32<<20) }},

	// Gradients.
	{"gradient of int", func(x *tenon.Exec) any { return whole(x, 2).SetRequiresGrad(true) }},
	{"backward of a constant", func(x *tenon.Exec) any { return x.Backward(ones(x)) }},
	{"backward of many", func(x *tenon.Exec) any { return x.Backward(x.MulS(leaf(x, 3), 2)) }},
	{"backward twice", func(x *tenon.Exec) any {
		a := leaf(x, 3)
		loss := x.Sum(x.Mul(a, a), nil)
		return errors.Join(x.Backward(loss), x.Backward(loss))
	}},
	{"change of a leaf", func(x *tenon.Exec) any {
		a := leaf(x, 3)
		x.AddSInto(a, a, 1)
		return nil
	}},
	{"change of a saved result", func(x *tenon.Exec) any {
		b := x.Exp(leaf(x, 3))
		loss := x.Sum(b, nil)
		x.AddSInto(b, b, 1)
		return x.Backward(loss)
	}},
	{"loss of an ended scope", func(x *tenon.Exec) any {
		a := leaf(x, 3)
		return x.Backward(scoped(x, func(x *tenon.Exec) *tenon.Tensor { return x.Sum(x.Exp(a), nil) }))
	}},

	// Modules and optimizers.
	{"optimizer of nothing", func(x *tenon.Exec) any { return failed(optim.NewAdam(nn.Params(nn.Sequential{nn.ReLU{}}))) }},
	{"negative rate", func(x *tenon.Exec) any {
		return failed(optim.NewAdam(nn.Params(nn.Scoped(x, nn.NewLinear(x, 2, 2))), optim.AdamOpt{LR: -1}))
	}},
	{"parameters twice", func(x *tenon.Exec) any {
		l := nn.Scoped(x, nn.NewLinear(x, 2, 2))
		o, err := optim.NewAdam(nn.Params(l))
		return errors.Join(err, o.Add(nn.Params(l)))
	}},
	{"layer that cannot be seen", func(x *tenon.Exec) any {
		return failed(optim.NewSGD(nn.Params(&struct{ hidden *nn.Linear }{nn.Scoped(x, nn.NewLinear(x, 2, 2))}), optim.SGDOpt{LR: 1}))
	}},
	{"one name for two layers", func(x *tenon.Exec) any {
		two := &struct {
			A *nn.Linear `torch:"a"`
			B *nn.Linear `torch:"a"`
		}{nn.Scoped(x, nn.NewLinear(x, 2, 2)), nn.Scoped(x, nn.NewLinear(x, 2, 2))}
		return torchfile.Write(x, io.Discard, torchfile.Tensors(nn.StateDict(two)))
	}},
	{"names that do not fit", func(x *tenon.Exec) any {
		return nn.Load(x, nn.Scoped(x, nn.NewLinear(x, 2, 2)), map[string]*tenon.Tensor{"weight": ones(x, 2, 3), "b": ones(x, 2)})
	}},

	// Files and data.
	{"missing file", func(x *tenon.Exec) any {
		return nn.LoadFile(x, nn.Scoped(x, nn.NewLinear(x, 2, 2)), "missing.safetensors")
	}},
	{"file of another kind", func(x *tenon.Exec) any {
		text := strings.NewReader("this is not a checkpoint")
		return failed(torchfile.New(text, text.Size()))
	}},
	{"value that PyTorch lacks", func(x *tenon.Exec) any { return torchfile.Write(x, io.Discard, make(chan int)) }},
	{"values that fill no rows", func(x *tenon.Exec) any { return failed(data.NewTable(data.NewColumn([]float32{1, 2, 3}, 2))) }},
	{"columns of two lengths", func(x *tenon.Exec) any {
		return failed(data.NewTable(data.NewColumn([]float32{1, 2, 3}), data.NewColumn([]int64{1})))
	}},

	// Captures and Execs.
	{"number read in a capture", func(x *tenon.Exec) any {
		a := ones(x, 1)
		return failed(x.Capture(func(x *tenon.Exec) { _, _ = x.Item(x.AddS(a, 1)) }))
	}},
	{"outer Exec in a capture", func(outer *tenon.Exec) any {
		a := ones(outer, 1)
		return failed(outer.Capture(func(*tenon.Exec) { outer.AddSInto(a, a, 1) }))
	}},
	{"capture in a capture", func(x *tenon.Exec) any {
		var inner error
		g, err := x.Capture(func(x *tenon.Exec) {
			x.Neg(ones(x, 1))
			inner = failed(x.Capture(func(*tenon.Exec) {}))
		})
		g.Close()
		return errors.Join(err, inner)
	}},
	{"Exec that was closed", func(x *tenon.Exec) any {
		fork, err := x.Fork()
		if err != nil {
			return err
		}
		return errors.Join(fork.Close(), failed(fork.Item(ones(x))))
	}},
	{"graph that was closed", func(x *tenon.Exec) any {
		a := ones(x, 1)
		g, err := x.Capture(func(x *tenon.Exec) { x.AddSInto(a, a, 1) })
		if err != nil {
			return err
		}
		g.Close()
		return x.Replay(g)
	}},
}

// try makes a mistake and returns its error.
func try(x *tenon.Exec, m mistake) error {
	return x.Do(func(x *tenon.Exec) error {
		err, _ := m.make(x).(error)
		return err
	})
}

func main() {
	only := flag.String("only", "", "make only the mistakes whose names contain this")
	flag.Parse()
	if err := run(*only, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(only string, out io.Writer) error {
	x, err := tenon.Open(tenon.Sim(64 << 20))
	if err != nil {
		return err
	}
	defer x.Close()
	for _, m := range mistakes {
		if strings.Contains(m.name, only) {
			fmt.Fprintf(out, "%s: %v\n", m.name, try(x, m))
		}
	}
	return nil
}

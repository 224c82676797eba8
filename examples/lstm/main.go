// LSTM tells lines of Go from lines of prose with a recurrent network that reads each of them in both directions. A compiled step is one
// graph, although the lines of a batch have different lengths.
//
//	go run ./examples/lstm
//	go run ./examples/lstm -gru -compile
package main

import (
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/data"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// classifier returns the logit that a line is prose, given its characters with 0 after the end. Either LSTM or GRU is nil.
type classifier struct {
	Characters *nn.Embedding
	LSTM       *nn.LSTM
	GRU        *nn.GRU
	Out        *nn.Linear
}

func newClassifier(x *tenon.Exec, width int, gru bool) *classifier {
	m, both := &classifier{}, nn.RecurrentOpt{BatchFirst: true, Bidirectional: true}
	m.Characters = nn.NewEmbedding(x, 129, width/2)
	if gru {
		m.GRU = nn.NewGRU(x, width/2, width, both)
	} else {
		m.LSTM = nn.NewLSTM(x, width/2, width, both)
	}
	m.Out = nn.NewLinear(x, 2*width, 1)
	return m
}

func (m *classifier) Forward(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		characters, lengths := m.Characters.Forward(x, in), x.Sum(x.NeS(in, 0), []int{1})
		var last *tenon.Tensor // the state of each direction after the line
		if m.GRU != nil {
			_, last = m.GRU.Forward(x, characters, nn.GRUForwardOpt{Lengths: lengths})
		} else {
			_, last, _ = m.LSTM.Forward(x, characters, nn.LSTMForwardOpt{Lengths: lengths})
		}
		return m.Out.Forward(x, x.Cat(x.Unbind(last, 0), 1))
	})
}

// lines returns at most n lines of the files, as rows of length characters, with 0 after the end.
func lines(glob string, n, length int) (rows []int64, err error) {
	files, err := filepath.Glob(glob)
	if err != nil {
		return nil, err
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if line = strings.TrimSpace(line); len(line) < 8 || len(rows) == n*length {
				continue
			}
			row := make([]int64, length)
			for i := range min(length, len(line)) {
				row[i] = int64(line[i]&127) + 1
			}
			rows = append(rows, row...)
		}
	}
	if len(rows) < n*length {
		return nil, fmt.Errorf("%s has fewer than %d lines", glob, n)
	}
	return rows, nil
}

// options are the command-line options.
type options struct {
	device, code, prose                 string
	lines, length, width, epochs, batch int
	gru, compile                        bool
}

func main() {
	o := options{lines: 512, length: 32, width: 32, batch: 32}
	flag.StringVar(&o.device, "device", "best", "best, cuda:1, cpu, sim, …")
	flag.StringVar(&o.code, "code", "nn/*.go", "files of code")
	flag.StringVar(&o.prose, "prose", "docs/*.md", "files of prose")
	flag.IntVar(&o.epochs, "epochs", 3, "how often to go through the lines")
	flag.BoolVar(&o.gru, "gru", false, "GRU instead of LSTM")
	flag.BoolVar(&o.compile, "compile", false, "run steps as graphs")
	flag.Parse()
	if err := run(o, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(o options, out io.Writer) error {
	device, err := tenon.ParseSelector(o.device)
	if err != nil {
		return err
	}
	x, err := tenon.Open(device)
	if err != nil {
		return err
	}
	defer x.Close()
	return train(x, o, out)
}

func load(o options) (*data.Loader, error) {
	code, err := lines(o.code, o.lines, o.length)
	if err != nil {
		return nil, err
	}
	prose, err := lines(o.prose, o.lines, o.length)
	if err != nil {
		return nil, err
	}
	labels := slices.Concat(make([]float32, o.lines), slices.Repeat([]float32{1}, o.lines))
	samples, err := data.NewTable(data.NewColumn(append(code, prose...), o.length), data.NewColumn(labels, 1))
	if err != nil {
		return nil, err
	}
	return data.NewLoader(samples, data.LoaderOpt{BatchSize: o.batch, Shuffle: true, DropLast: true})
}

func train(x *tenon.Exec, o options, out io.Writer) error {
	loader, err := load(o)
	if err != nil {
		return err
	}
	x.Device().Generator().SetSeed(1)
	model := newClassifier(x, o.width, o.gru)
	defer nn.Close(model)
	adam, err := optim.NewAdam(nn.Params(model), optim.AdamOpt{LR: 5e-3})
	if err != nil {
		return err
	}
	defer adam.Close()
	do := (*tenon.Exec).Do
	if o.compile {
		do = compile.New().Do
	}
	total, right := x.Zeros(nil, tenon.Float32), x.Zeros(nil, tenon.Int64)
	defer total.Close()
	defer right.Close()
	for epoch := range o.epochs {
		x.FillInto(total, 0)
		x.FillInto(right, 0)
		for batch, err := range loader.Epoch(x) {
			if err != nil {
				return err
			}
			err := do(x, func(x *tenon.Exec) error {
				in, labels := batch.Tensors[0], batch.Tensors[1]
				logits := model.Forward(x, in)
				loss := x.BCEWithLogits(logits, labels)
				x.NoGrad().AddInto(total, total, loss)
				x.AddInto(right, right, x.Sum(x.Eq(x.GtS(logits, 0), x.GtS(labels, 0.5)), nil))
				adam.ZeroGrad()
				if err := x.Backward(loss); err != nil {
					return err
				}
				nn.ClipGradNorm(x, nn.Params(model), 1)
				return adam.Step(x)
			})
			if err != nil {
				return err
			}
		}
		loss, err := x.Item(total)
		if err != nil {
			return err
		}
		hits, err := x.Item(right)
		if err != nil {
			return err
		}
		steps := float64(loader.Len())
		fmt.Fprintf(out, "epoch %d  loss %.6f  right %.3f\n", epoch+1, loss/steps, hits/steps/float64(o.batch))
	}
	return nil
}

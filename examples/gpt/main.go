// GPT trains a small transformer on the characters of a text and then writes text like it. It shows a custom model, parameter groups, a
// schedule, checkpoints that a later run resumes from, recomputed blocks, and training steps that run as graphs.
//
//	go run ./examples/gpt -text LICENSE
//	go run ./examples/gpt -compile -bf16 -recompute
//	go run ./examples/gpt -epochs 5 -checkpoint run.pt && go run ./examples/gpt -epochs 10 -checkpoint run.pt
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"log"
	"math"
	"os"
	"slices"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/data"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// options are the command-line options.
type options struct {
	device, text, checkpoint       string
	epochs, planned, batch, tokens int
	seed                           uint64
	compile, bf16                  bool
	model                          config
}

func main() {
	o := options{model: config{context: 64, width: 64, heads: 4, layers: 2, dropout: 0.1}}
	flag.StringVar(&o.device, "device", "best", "best, cuda:1, cpu, sim, …")
	flag.StringVar(&o.text, "text", "LICENSE", "file to learn from")
	flag.StringVar(&o.checkpoint, "checkpoint", "", "file to resume from, if it is there, and to write after each epoch")
	flag.IntVar(&o.epochs, "epochs", 10, "stop after this epoch")
	flag.IntVar(&o.planned, "schedule", 10, "epochs of the learning rate's schedule")
	flag.IntVar(&o.batch, "batch", 8, "windows of text in a step")
	flag.IntVar(&o.tokens, "tokens", 200, "characters to write")
	flag.Uint64Var(&o.seed, "seed", 1, "what random numbers begin with")
	flag.BoolVar(&o.compile, "compile", false, "run steps as graphs")
	flag.BoolVar(&o.bf16, "bf16", false, "compute products in bfloat16")
	flag.BoolVar(&o.model.recompute, "recompute", false, "keep less memory for the backward pass")
	flag.Parse()
	if err := run(o, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(o options, out io.Writer) error {
	text, err := os.ReadFile(o.text)
	if err != nil {
		return err
	}
	device, err := tenon.ParseSelector(o.device)
	if err != nil {
		return err
	}
	x, err := tenon.Open(device)
	if err != nil {
		return err
	}
	defer x.Close()
	t, err := newTraining(x, text, o)
	if err != nil {
		return err
	}
	defer t.close()
	if err := t.run(x, o, out); err != nil {
		return err
	}
	sample, err := t.write(x, text[:8], o.tokens, 0.8, 10)
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", sample)
	return err
}

// training is the state of a run.
type training struct {
	vocab    []byte
	model    *gpt
	adamw    *optim.AdamW
	schedule *optim.Schedule
	loader   *data.Loader
}

func newTraining(x *tenon.Exec, text []byte, o options) (*training, error) {
	x.Device().Generator().SetSeed(o.seed)
	t := &training{vocab: slices.Compact(slices.Sorted(slices.Values(text)))}
	windows, err := data.NewTable(t.windows(text, o.model.context))
	if err != nil {
		return nil, err
	}
	t.loader, err = data.NewLoader(windows, data.LoaderOpt{BatchSize: o.batch, Shuffle: true, DropLast: true, Seed: o.seed})
	if err != nil {
		return nil, err
	}
	o.model.vocab = len(t.vocab)
	t.model = newGPT(x, o.model)
	matrices, vectors := nn.SplitParams(nn.Params(t.model), func(_ string, p *nn.Param) bool { return p.Tensor().Dim() > 1 })
	t.adamw, err = optim.NewAdamW(matrices, optim.AdamOpt{LR: 3e-3, Betas: []float64{0.9, 0.95}, WeightDecay: 0.1})
	if err != nil {
		return nil, err
	}
	if err := t.adamw.Add(vectors, optim.AdamOpt{WeightDecay: 0}); err != nil {
		return nil, err
	}
	const warmUp = 10
	steps := o.planned * t.loader.Len()
	rule := optim.SequentialLR([]int{warmUp}, optim.LinearLR(0.1, 1, warmUp), optim.CosineAnnealingLR(steps-warmUp, 1e-4))
	t.schedule, err = optim.NewSchedule(t.adamw, rule)
	return t, err
}

func (t *training) close() {
	t.adamw.Close()
	nn.Close(t.model)
}

// encode returns the numbers of the characters.
func (t *training) encode(text []byte) []int64 {
	tokens := make([]int64, len(text))
	for i, c := range text {
		tokens[i] = int64(slices.Index(t.vocab, c))
	}
	return tokens
}

// windows cuts the text into samples one character longer than the context, so that each character of the context has a successor.
func (t *training) windows(text []byte, context int) data.Column {
	n := (len(text) - 1) / context
	samples := make([]int64, 0, n*(context+1))
	for i := range n {
		samples = append(samples, t.encode(text[i*context:][:context+1])...)
	}
	return data.NewColumn(samples, context+1)
}

// run trains until the last epoch, starting from the checkpoint if one exists.
func (t *training) run(x *tenon.Exec, o options, out io.Writer) error {
	checkpoint := &optim.Checkpoint{Model: t.model, Optimizer: t.adamw, Schedule: t.schedule, Loader: t.loader}
	if o.checkpoint != "" {
		if err := checkpoint.Load(x, o.checkpoint); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	do := (*tenon.Exec).Do
	if o.compile {
		do = compile.New().Do
	}
	total := x.Zeros(nil, tenon.Float32)
	defer total.Close()
	for t.loader.State().Epoch < o.epochs {
		x.FillInto(total, 0)
		for batch, err := range t.loader.Epoch(x) {
			if err != nil {
				return err
			}
			err := do(x, func(x *tenon.Exec) error { return t.step(x, batch.Tensors[0], total, o.bf16) })
			if err != nil {
				return err
			}
			if err := t.schedule.Step(); err != nil {
				return err
			}
		}
		loss, err := x.Item(total)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "epoch %d  loss %.6f\n", t.loader.State().Epoch, loss/float64(t.loader.Len()))
		if o.checkpoint != "" {
			if err := checkpoint.Save(x, o.checkpoint); err != nil {
				return err
			}
		}
	}
	return nil
}

// step trains on windows and adds their loss to total. It reads nothing from the device, so that it can be one graph.
func (t *training) step(x *tenon.Exec, windows, total *tenon.Tensor, bf16 bool) error {
	forward := x
	if bf16 {
		forward = x.Autocast(tenon.BFloat16)
	}
	in, next := x.Index(windows, tenon.All, tenon.Span(0, -1)), x.Index(windows, tenon.All, tenon.Span(1, tenon.End))
	logits := t.model.Forward(forward, in)
	loss := forward.CrossEntropy(x.Flatten(logits, 0, 1), x.Flatten(next, 0, 1))
	x.NoGrad().AddInto(total, total, loss)
	t.adamw.ZeroGrad()
	if err := x.Backward(loss); err != nil {
		return err
	}
	nn.ClipGradNorm(x, nn.Params(t.model), 1)
	return t.adamw.Step(x)
}

// write continues the prompt with n characters, each drawn from the k most likely ones.
func (t *training) write(x *tenon.Exec, prompt []byte, n int, temperature float64, k int) ([]byte, error) {
	nn.Eval(t.model)
	defer nn.Train(t.model)
	text := slices.Clone(prompt)
	for range n {
		err := x.NoGrad().Do(func(x *tenon.Exec) error {
			seen := t.encode(text[max(0, len(text)-t.model.config.context):])
			logits := x.DivS(x.Index(t.model.Forward(x, tenon.From(x, seen, 1, len(seen))), 0, -1), temperature)
			top, _ := x.TopK(logits, k)
			likely := x.MaskedFillS(logits, x.Lt(logits, x.Index(top, -1)), math.Inf(-1))
			drawn, err := x.Item(x.Multinomial(x.Softmax(likely, -1), 1))
			if err != nil {
				return err
			}
			text = append(text, t.vocab[int(drawn)])
			return nil
		})
		if err != nil {
			return nil, err
		}
	}
	return text, nil
}

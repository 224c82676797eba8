// Vae learns to draw handwritten digits with a variational autoencoder (D. Kingma, M. Welling, ICLR 2014). It shows a custom loss with
// random numbers within it.
//
//	go run ./examples/vae
package main

import (
	"compress/gzip"
	"encoding/csv"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"strconv"

	"tenon.dev"
	"tenon.dev/data"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

const side, latent = 8, 4

type vae struct{ Encoder, Decoder nn.Sequential }

func newVAE(x *tenon.Exec) *vae {
	kernel, same := [2]int{3, 3}, nn.Conv2dOpt{Same: true}
	half := nn.Conv2dOpt{Padding: [2]int{1, 1}, Stride: [2]int{2, 2}}
	twice := nn.ConvTranspose2dOpt{Padding: [2]int{1, 1}, Stride: [2]int{2, 2}, OutputPadding: [2]int{1, 1}}
	return &vae{
		Encoder: nn.Sequential{
			nn.NewConv2d(x, 1, 8, kernel, half), nn.SiLU{}, nn.NewConv2d(x, 8, 16, kernel, half), nn.SiLU{},
			nn.Flatten{}, nn.NewLinear(x, 64, 2*latent),
		},
		Decoder: nn.Sequential{
			nn.NewLinear(x, latent, 64), nn.SiLU{},
			nn.Func(func(x *tenon.Exec, in *tenon.Tensor) *tenon.Tensor { return x.Unflatten(in, 1, 16, 2, 2) }),
			nn.NewConvTranspose2d(x, 16, 8, kernel, twice), nn.SiLU{},
			nn.Upsample{Scale: []float64{2}}, nn.NewConv2d(x, 8, 1, kernel, same),
		},
	}
}

// loss returns the reconstruction error of the images plus the divergence of their codes from the normal distribution.
func (m *vae) loss(x *tenon.Exec, images *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		codes := x.Chunk(m.Encoder.Forward(x, images), 2, 1)
		mean, logVar := codes[0], codes[1]
		code := x.Add(mean, x.Mul(x.Exp(x.MulS(logVar, 0.5)), x.RandN(mean.Shape(), tenon.Float32)))
		drawn := x.BCEWithLogits(m.Decoder.Forward(x, code), images, tenon.BCEWithLogitsOpt{Reduction: tenon.ReduceSum})
		divergence := x.Sum(x.Sub(x.Add(x.Square(mean), x.Exp(logVar)), x.AddS(logVar, 1)), nil)
		return x.DivS(x.Add(drawn, x.MulS(divergence, 0.5)), float64(images.Size(0)))
	})
}

// load reads images: each line has 64 pixels from 0 to 16 and a label.
func load(name string) (*data.Table, error) {
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	unpacked, err := gzip.NewReader(file)
	if err != nil {
		return nil, err
	}
	lines, err := csv.NewReader(unpacked).ReadAll()
	if err != nil {
		return nil, err
	}
	var pixels []float32
	for _, line := range lines {
		for _, text := range line[:side*side] {
			v, err := strconv.ParseFloat(text, 32)
			if err != nil {
				return nil, err
			}
			pixels = append(pixels, float32(v)/16)
		}
	}
	return data.NewTable(data.NewColumn(pixels, 1, side, side))
}

// draw prints n new images.
func (m *vae) draw(x *tenon.Exec, n int, out io.Writer) error {
	return x.NoGrad().Do(func(x *tenon.Exec) error {
		images := x.Sigmoid(m.Decoder.Forward(x, x.RandN([]int{n, latent}, tenon.Float32)))
		pixels, err := tenon.Read[float32](x, x.Permute(images, 2, 0, 3, 1)) // row by row, the images side by side
		for i, v := range pixels {
			fmt.Fprintf(out, "%c", []rune(" ░▒▓█")[int(v*4.99)])
			if (i+1)%(n*side) == 0 {
				fmt.Fprintln(out)
			}
		}
		return err
	})
}

func main() {
	device := flag.String("device", "best", "best, cuda:1, cpu, sim, …")
	file := flag.String("data", "examples/digits/digits.csv.gz", "images to learn from")
	epochs := flag.Int("epochs", 5, "how often to go through the images")
	flag.Parse()
	if err := run(*device, *file, *epochs, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(device, file string, epochs int, out io.Writer) error {
	images, err := load(file)
	if err != nil {
		return err
	}
	selector, err := tenon.ParseSelector(device)
	if err != nil {
		return err
	}
	x, err := tenon.Open(selector)
	if err != nil {
		return err
	}
	defer x.Close()
	m := newVAE(x)
	defer nn.Close(m)
	adam, err := optim.NewAdam(nn.Params(m), optim.AdamOpt{LR: 3e-3})
	if err != nil {
		return err
	}
	defer adam.Close()
	loader, err := data.NewLoader(images, data.LoaderOpt{BatchSize: 64, Shuffle: true, DropLast: true})
	if err != nil {
		return err
	}
	for epoch := range epochs {
		mean := 0.0
		for batch, err := range loader.Epoch(x) {
			if err != nil {
				return err
			}
			err := x.Do(func(x *tenon.Exec) error {
				loss := m.loss(x, batch.Tensors[0])
				adam.ZeroGrad()
				if err := x.Backward(loss); err != nil {
					return err
				}
				if err := adam.Step(x); err != nil {
					return err
				}
				v, err := x.Item(loss)
				mean += v / float64(loader.Len())
				return err
			})
			if err != nil {
				return err
			}
		}
		fmt.Fprintf(out, "epoch %d  loss %.3f\n", epoch+1, mean)
	}
	return m.draw(x, 6, out)
}

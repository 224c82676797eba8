package data_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"log"
	"math/rand/v2"
	"strings"

	"tenon.dev"
	"tenon.dev/data"
	"tenon.dev/nn"
	"tenon.dev/optim"
)

// records is a file of samples of 5 bytes: a class and an image of 2 x 2 pixels.
type records struct {
	file io.ReaderAt
	n    int
}

func (r records) Len() int { return r.n }

func (r records) Fields() []data.Field {
	return []data.Field{{DType: tenon.Uint8, Shape: []int{2, 2}}, {DType: tenon.Int64}}
}

func (r records) Read(i int, dst [][]byte) error {
	var record [5]byte
	if _, err := r.file.ReadAt(record[:], int64(i*len(record))); err != nil {
		return err
	}
	copy(dst[0], record[1:])
	binary.LittleEndian.PutUint64(dst[1], uint64(record[0]))
	return nil
}

// A model learns from a data set of the program's own, part of which is kept for validation, and the loader resumes its place.
func Example() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	all := records{strings.NewReader(strings.Repeat("\x00\xff\x00\x00\x00\x01\x00\x00\x00\xff", 10)), 20}
	rows := rand.New(rand.NewPCG(1, 2)).Perm(all.Len())
	train, test := data.Subset{Of: all, Rows: rows[:16]}, data.Subset{Of: all, Rows: rows[16:]}
	loader, err := data.NewLoader(train, data.LoaderOpt{BatchSize: 4, Shuffle: true, Seed: 7, Workers: 4, Prefetch: 8})
	if err != nil {
		log.Fatal(err)
	}

	model := nn.Sequential{nn.Flatten{}, nn.NewLinear(x, 4, 2, nn.LinearOpt{Generator: nn.NewHostGenerator(0)})}
	defer nn.Close(model)
	adamw, err := optim.NewAdamW(nn.Params(model), optim.AdamOpt{LR: 0.1})
	if err != nil {
		log.Fatal(err)
	}
	defer adamw.Close()
	scaled := func(x *tenon.Exec, pixels *tenon.Tensor) *tenon.Tensor {
		return x.MulS(x.ToDType(pixels, tenon.Float32), 1.0/255)
	}
	for range 5 {
		for batch, err := range loader.Epoch(x) {
			if err != nil {
				log.Fatal(err)
			}
			pixels, classes := batch.Tensors[0], batch.Tensors[1]
			err := x.Do(func(x *tenon.Exec) error {
				adamw.ZeroGrad()
				if err := x.Backward(x.CrossEntropy(model.Forward(x, scaled(x, pixels)), classes)); err != nil {
					return err
				}
				return adamw.Step(x)
			})
			if err != nil {
				log.Fatal(err)
			}
		}
	}

	whole, err := data.NewLoader(test, data.LoaderOpt{BatchSize: test.Len()})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range whole.Epoch(x) {
		if err != nil {
			log.Fatal(err)
		}
		found := x.ArgMax(model.Forward(x, scaled(x, batch.Tensors[0])), []int{1})
		right, err := x.Item(x.Sum(x.Eq(found, batch.Tensors[1]), nil))
		fmt.Println(right, "of", test.Len(), err)
	}

	place := loader.State()
	again, err := data.NewLoader(train, data.LoaderOpt{BatchSize: 4, Shuffle: true, Seed: 7})
	if err != nil {
		log.Fatal(err)
	}
	if err := again.SetState(place); err != nil {
		log.Fatal(err)
	}
	fmt.Println(again.State().Epoch, "epochs are done")
	// Output:
	// 4 of 4 <nil>
	// 5 epochs are done
}

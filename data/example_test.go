package data_test

import (
	"encoding/binary"
	"fmt"
	"log"

	"tenon.dev"
	"tenon.dev/data"
)

// Five samples of two features and a label come in batches of two.
func ExampleLoader() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	features := []float32{0, 0, 1, 10, 2, 20, 3, 30, 4, 40}
	labels := []int64{0, 1, 2, 3, 4}
	samples, err := data.NewTable(data.NewColumn(features, 2), data.NewColumn(labels))
	if err != nil {
		log.Fatal(err)
	}
	loader, err := data.NewLoader(samples, data.LoaderOpt{BatchSize: 2, Shuffle: true, Seed: 0})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range loader.Epoch(x) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(batch.Rows, batch.Tensors[0].Shape(), batch.Tensors[1].Shape())
	}
	// Output:
	// [4 0] [2 2] [2]
	// [1 3] [2 2] [2]
	// [2] [1 2] [1]
}

// squares is a custom data set: sample i is the number i and its square, computed when it is read.
type squares int

func (s squares) Len() int { return int(s) }

func (s squares) Fields() []data.Field {
	return []data.Field{{DType: tenon.Int64}, {DType: tenon.Int64}}
}

func (s squares) Read(i int, dst [][]byte) error {
	binary.LittleEndian.PutUint64(dst[0], uint64(i))
	binary.LittleEndian.PutUint64(dst[1], uint64(i*i))
	return nil
}

// Every fifth sample of a data set is kept for testing.
func ExampleSubset() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	all := squares(10)
	var rows []int
	for i := range all.Len() {
		if i%5 == 4 {
			rows = append(rows, i)
		}
	}
	test, err := data.NewLoader(data.Subset{Of: all, Rows: rows}, data.LoaderOpt{BatchSize: 8})
	if err != nil {
		log.Fatal(err)
	}
	for batch, err := range test.Epoch(x) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(x.Format(batch.Tensors[0]))
		fmt.Println(x.Format(batch.Tensors[1]))
	}
	// Output:
	// [4 9] int64[2] on CPU <nil>
	// [16 81] int64[2] on CPU <nil>
}

package data_test

import (
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

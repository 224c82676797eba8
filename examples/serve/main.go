// Serve answers requests on several goroutines with one model: each worker has its own Exec, with its own stream. It must not depend on
// anything but the public packages of Tenon.
//
//	go run ./examples/serve
package main

import (
	"errors"
	"fmt"
	"log"
	"slices"
	"time"

	"tenon.dev"
	"tenon.dev/nn"
)

// serve has each worker answer every workers-th request, rows of 64 features. A request that fails has no answer, and its error is in err.
func serve(x *tenon.Exec, model nn.Module, workers int, requests [][]float32) (answers [][]float32, err error) {
	answers, errs := make([][]float32, len(requests)), make([]error, len(requests))
	err = x.NoGrad().Parallel(workers, func(x *tenon.Exec, w int) error {
		for i := w; i < len(requests); i += workers {
			errs[i] = x.Do(func(x *tenon.Exec) (err error) {
				answers[i], err = tenon.Read[float32](x, model.Forward(x, tenon.From(x, requests[i], len(requests[i])/64, 64)))
				return err
			})
		}
		return nil
	})
	return answers, errors.Join(append(errs, err)...)
}

func newModel(x *tenon.Exec) nn.Module {
	model := nn.Sequential{nn.NewLinear(x, 64, 256), nn.GELU{}, nn.NewLinear(x, 256, 10)}
	nn.Eval(model)
	return model
}

func main() {
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	rows, err := tenon.Read[float32](x, x.RandN([]int{8, 64}, tenon.Float32))
	if err != nil {
		log.Fatal(err)
	}
	start := time.Now()
	answers, err := serve(x, newModel(x), 4, slices.Repeat([][]float32{rows}, 200))
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(answers), "answers in", time.Since(start), "with", x.Device().MemoryAllocated(), "bytes of memory")
}

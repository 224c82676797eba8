// Serve answers requests on several goroutines with one model: each worker gets its own Exec from Fork, with its own stream. It must not
// depend on anything but the public packages of Tenon.
//
//	go run ./examples/serve -workers 4
package main

import (
	"flag"
	"fmt"
	"log"
	"sync"

	"tenon.dev"
	"tenon.dev/nn"
)

// reply is the answer to a request.
type reply struct {
	scores []float32
	err    error
}

// answer runs the model for one request.
func answer(x *tenon.Exec, model nn.Module, features []float32) (r reply) {
	r.err = x.NoGrad().Do(func(x *tenon.Exec) (err error) {
		in := tenon.From(x, features, 1, len(features))
		r.scores, err = tenon.Read[float32](x, x.Softmax(model.Forward(x, in), -1))
		return err
	})
	return r
}

// serve answers all requests; worker w takes every workers-th of them, from request w on.
func serve(x *tenon.Exec, model nn.Module, workers int, requests [][]float32) ([]reply, error) {
	replies := make([]reply, len(requests))
	var running sync.WaitGroup
	defer running.Wait()
	for w := range workers {
		fork, err := x.Fork()
		if err != nil {
			return nil, err
		}
		running.Go(func() {
			defer fork.Close()
			for i := w; i < len(requests); i += workers {
				replies[i] = answer(fork, model, requests[i])
			}
		})
	}
	return replies, nil
}

func newModel(x *tenon.Exec) nn.Sequential {
	model := nn.Sequential{nn.NewLinear(x, 64, 256), nn.GELU{}, nn.NewLinear(x, 256, 10)}
	nn.Eval(model)
	return model
}

func main() {
	workers := flag.Int("workers", 4, "goroutines that answer")
	flag.Parse()
	x, err := tenon.Open(tenon.Best())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	requests := [][]float32{make([]float32, 64), make([]float32, 63)} // the second one does not fit the model
	replies, err := serve(x, newModel(x), *workers, requests)
	if err != nil {
		log.Fatal(err)
	}
	for _, r := range replies {
		fmt.Println(r.scores, r.err)
	}
}

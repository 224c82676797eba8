package tenon_test

import (
	"errors"
	"fmt"
	"log"
	"strings"
	"sync"

	"tenon.dev"
)

// Each goroutine has an Exec of its own. Tensors are shared: a read waits for the work that makes them, on whatever stream.
func ExampleExec_Parallel() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	weights := tenon.From(x, []float32{1, 2, 3})
	sums := make([]float64, 3)
	err = x.Parallel(len(sums), func(x *tenon.Exec, i int) (err error) {
		sums[i], err = x.Item(x.Sum(x.MulS(weights, float64(i+1)), nil))
		return err
	})
	fmt.Println(sums, err)

	fork, err := x.Fork()
	if err != nil {
		log.Fatal(err)
	}
	done := make(chan error)
	go func() {
		err := fork.Do(func(x *tenon.Exec) error {
			x.MulSInto(weights, weights, 2)
			return nil
		})
		done <- errors.Join(err, fork.Close())
	}()
	fmt.Println(<-done)
	fmt.Println(tenon.Read[float32](x, weights))
	// Output:
	// [6 12 18] <nil>
	// <nil>
	// [2 4 6] <nil>
}

// Two goroutines in one Exec end in an error that names both lines, and the Exec is refused from then on. Others of the device go on.
func ExampleExec_shared() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	y, err := x.Fork()
	if err != nil {
		log.Fatal(err)
	}

	inside, left := make(chan bool), make(chan bool)
	var all sync.WaitGroup
	second := func() {
		err := tenon.Try(func() {
			y.Scope(func(y *tenon.Exec) {
				inside <- true
				<-left
			})
		})
		fmt.Println("the second:", shared(err))
	}
	err = tenon.Try(func() {
		y.Scope(func(y *tenon.Exec) { // ends before the scope that began within it
			all.Go(second)
			<-inside
		})
	})
	fmt.Println("the first:", shared(err))
	close(left)
	all.Wait()

	_, err = y.Item(x.Ones(nil, tenon.Float32))
	fmt.Println("later:", shared(err))
	fmt.Println(x.Item(x.Ones(nil, tenon.Float32)))
	// Output:
	// the first: true
	// the second: true
	// later: true
	// 1 <nil>
}

// shared reports whether err says that two goroutines used an Exec, with their lines.
func shared(err error) bool {
	var e *tenon.Error
	return errors.As(err, &e) && e.Kind == tenon.Invalid && strings.Contains(e.Msg, "two goroutines") &&
		strings.Contains(e.Msg, "_test.go:")
}

// An Exec may change hands: one goroutine is done with it before another begins, and the program says so, by a channel or a WaitGroup.
func ExampleExec_handedOver() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	made := make(chan *tenon.Tensor)
	go func() { made <- x.Full([]int{2}, 3, tenon.Float32) }()
	t := <-made // the other goroutine no longer uses x
	fmt.Println(tenon.Read[float32](x, x.Square(t)))
	// Output: [9 9] <nil>
}

// One goroutine makes what another works on: each has its Exec, and a channel hands over tensors that belong to no scope.
func ExampleExec_Keep_goroutines() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	batches := make(chan *tenon.Tensor)
	y, err := x.Fork()
	if err != nil {
		log.Fatal(err)
	}
	go func() {
		defer close(batches)
		for i := range 3 {
			batches <- y.Within(func(y *tenon.Exec) *tenon.Tensor { // with no scope around, the result is loose
				return y.Square(y.Full([]int{2}, float64(i), tenon.Float32))
			})
		}
	}()
	for b := range batches {
		x.Scope(func(x *tenon.Exec) { fmt.Println(tenon.Read[float32](x, x.AddS(b, 1))) })
		b.Close()
	}
	// Output:
	// [1 1] <nil>
	// [2 2] <nil>
	// [5 5] <nil>
}

// A graph is replayed by several goroutines. Its runs come one after the other, since they use the same memory.
func ExampleExec_Replay_goroutines() {
	x, err := tenon.Open(tenon.Sim(1 << 30))
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()

	count := x.Zeros(nil, tenon.Float32)
	graph, err := x.Capture(func(x *tenon.Exec) { x.AddSInto(count, count, 1) })
	if err != nil {
		log.Fatal(err)
	}
	defer graph.Close()
	var all sync.WaitGroup
	for range 4 {
		y, err := x.Fork()
		if err != nil {
			log.Fatal(err)
		}
		all.Go(func() {
			for range 10 {
				if err := y.Replay(graph); err != nil {
					log.Fatal(err)
				}
			}
		})
	}
	all.Wait()
	fmt.Println(x.Item(count))
	// Output: 40 <nil>
}

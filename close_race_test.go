package tenon_test

import (
	"errors"
	"slices"
	"sync"
	"testing"

	"tenon.dev"
	"tenon.dev/fault"
	"tenon.dev/internal/core"
	"tenon.dev/internal/testdevice"
)

// One goroutine closes a tensor while another is in the middle of an operation on it, past the check that it is open. The tensor keeps
// its memory until the operation has been issued: no allocation made meanwhile gets that memory. This holds whether Close or the end of a
// scope closes the tensor, whatever the operation does with it, and however many Execs share the stream.
func TestCloseMeetsOperation(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		ways := map[string]func(x *tenon.Exec, use func(a *tenon.Tensor)){
			"Close": func(x *tenon.Exec, use func(a *tenon.Tensor)) {
				a := tenon.From(x, []float32{1, 2, 3})
				use(a)
				a.Close()
			},
			"a view": func(x *tenon.Exec, use func(a *tenon.Tensor)) {
				a := tenon.From(x, []float32{0, 1, 2, 3})
				v := x.Narrow(a, 0, 1, 3)
				use(v)
				a.Close()
				v.Close()
			},
			"the end of a scope": func(x *tenon.Exec, use func(a *tenon.Tensor)) {
				x.Scope(func(x *tenon.Exec) { use(tenon.From(x, []float32{1, 2, 3})) })
			},
		}
		for name, way := range ways {
			for _, into := range []bool{false, true} {
				before := testdevice.Storages()
				y := session(t, x) // on x's stream
				inside, proceed := make(chan bool), make(chan bool)
				core.SetTap((*core.Exec)(y), watch(func() {
					inside <- true
					<-proceed
				}))
				var got *tenon.Tensor
				var all sync.WaitGroup
				way(x, func(a *tenon.Tensor) {
					all.Go(func() {
						if into { // finds it closed
							if err := tenon.Try(func() { y.FillInto(a, 7) }); fault.KindOf(err) != fault.Closed {
								t.Errorf("%s: %v", name, err)
							}
						} else {
							got = y.MulS(a, 2)
						}
					})
					<-inside
				}) // has closed it
				others := make([]*tenon.Tensor, 8) // one of them would get its memory
				for i := range others {
					others[i] = x.Full([]int{3}, 5, tenon.Float32)
				}
				proceed <- true
				all.Wait()
				core.SetTap((*core.Exec)(y), nil)
				for _, o := range others {
					if v, err := tenon.Read[float32](x, o); err != nil || !slices.Equal(v, []float32{5, 5, 5}) {
						t.Errorf("%s: another tensor is %v, %v", name, v, err)
					}
					o.Close()
				}
				if !into {
					if v, err := tenon.Read[float32](x, got); err != nil || !slices.Equal(v, []float32{2, 4, 6}) {
						t.Errorf("%s: the operation gave %v, %v", name, v, err)
					}
					got.Close()
				}
				if n := core.LiveStorages(); n != before {
					t.Errorf("%s: %d storages are left", name, n-before)
				}
			}
		}
	})
}

// Goroutines that use tensors while another goroutine closes them get correct results or an error of kind Closed, and no storage leaks.
func TestCloseRace(t *testing.T) {
	open(t, func(t *testing.T, x *tenon.Exec) {
		before := testdevice.Storages()
		type job struct{ a, b *tenon.Tensor }
		jobs := make(chan job, 1)
		var all sync.WaitGroup
		for range 3 {
			y, err := x.Fork()
			must(t, err)
			all.Go(func() {
				defer func() { must(t, y.Close()) }()
				for j := range jobs {
					err := attempt(t, func() error {
						r := y.Add(j.a, j.b)
						defer r.Close()
						v, err := tenon.Read[float32](y, r)
						if err == nil && !slices.Equal(v, []float32{5, 7, 9}) {
							t.Error("a sum is", v)
						}
						y.AddInto(j.a, j.a, j.b)
						return err
					})
					if e := (*tenon.Error)(nil); err != nil && (!errors.As(err, &e) || e.Kind != tenon.Closed) {
						t.Errorf("%T: %v", err, err)
					}
				}
			})
		}
		for i := range 300 {
			j := job{tenon.From(x, []float32{1, 2, 3}), tenon.From(x, []float32{4, 5, 6})}
			if i%2 == 0 {
				jobs <- j
				j.a.Close()
				j.b.Close()
			} else {
				x.Scope(func(x *tenon.Exec) { jobs <- job{x.MulS(j.a, 1), x.MulS(j.b, 1)} })
				j.a.Close()
				j.b.Close()
			}
			o := x.Full([]int{3}, 5, tenon.Float32)
			if v, err := tenon.Read[float32](x, o); err != nil || !slices.Equal(v, []float32{5, 5, 5}) {
				t.Errorf("another tensor is %v, %v", v, err)
			}
			o.Close()
		}
		close(jobs)
		all.Wait()
		if n := core.LiveStorages(); n != before {
			t.Errorf("%d storages are left", n-before)
		}
	})
}

package data_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/data"
)

// A batch of a resumed epoch has its place in the whole epoch.
func TestBatchOfResumedEpoch(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		l, err := data.NewLoader(table(t, 10), data.LoaderOpt{BatchSize: 3})
		if err != nil {
			t.Fatal(err)
		}
		st := l.State()
		st.Batch = 2
		if err := l.SetState(st); err != nil {
			t.Fatal(err)
		}
		var got []string
		for b, err := range l.Epoch(x) {
			if err != nil {
				t.Fatal(err)
			}
			got = append(got, fmt.Sprint(b.Index, b.Last))
		}
		if want := []string{"2 false", "3 true"}; !slices.Equal(got, want) {
			t.Errorf("the batches are %q, want %q", got, want)
		}
	})
}

// A loader resumes from another one's position, at every batch of two epochs and between them, and yields the same batches as the other.
func TestLoaderState(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		for _, opt := range []data.LoaderOpt{{BatchSize: 3, Shuffle: true, Seed: 4, Workers: 2}, {BatchSize: 3, DropLast: true},
			{BatchSize: 3, Shuffle: true, Prefetch: 5}} {
			make := func() *data.Loader {
				l, err := data.NewLoader(table(t, 10), opt)
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			var states []data.LoaderState
			var all []string
			note := func(l *data.Loader, batches [][]int) { all = append(all, fmt.Sprint(l.State().Epoch, batches)) }
			whole := make()
			states = append(states, whole.State())
			for range 3 {
				var rows [][]int
				for b, err := range whole.Epoch(x) {
					if err != nil {
						t.Fatal(err)
					}
					if b.Index != len(rows) || b.Last != (len(rows) == whole.Len()-1) {
						t.Errorf("batch %d of %d says that it is batch %d, the last: %v", len(rows), whole.Len(), b.Index, b.Last)
					}
					rows = append(rows, b.Rows)
					states = append(states, whole.State())
				}
				note(whole, rows)
				states = append(states, whole.State())
			}
			for _, st := range states {
				l := make()
				if err := l.SetState(st); err != nil {
					t.Fatal(err)
				}
				if got := l.State(); got != st {
					t.Errorf("the state is %+v, want %+v", got, st)
				}
				for l.State().Epoch < 3 {
					n := l.State().Epoch
					rows := epoch(t, x, l)
					rest := all[n]
					if n == st.Epoch {
						rest = fmt.Sprint(n+1, epochOf(t, x, make(), n)[st.Batch:])
					}
					if got := fmt.Sprint(l.State().Epoch, rows); got != rest {
						t.Errorf("%+v from %+v: epoch %d is %s, want %s", opt, st, n, got, rest)
					}
				}
			}
		}
	})
}

// epochOf returns epoch n of a new loader.
func epochOf(t *testing.T, x *tenon.Exec, l *data.Loader, n int) (rows [][]int) {
	for range n + 1 {
		rows = epoch(t, x, l)
	}
	return rows
}

// A loop that is left early has ended its epoch.
func TestLoaderStateAfterBreak(t *testing.T) {
	onDevices(t, func(t *testing.T, x *tenon.Exec) {
		var orders [2][][]int
		for i := range orders {
			l, err := data.NewLoader(table(t, 10), data.LoaderOpt{BatchSize: 4, Shuffle: true})
			if err != nil {
				t.Fatal(err)
			}
			for range l.Epoch(x) {
				if err := l.SetState(l.State()); err == nil || !strings.Contains(err.Error(), "epoch is under way") {
					t.Errorf("got %v", err)
				}
				break
			}
			st := l.State()
			if st.Epoch != 1 || st.Batch != 0 {
				t.Errorf("the state is %+v", st)
			}
			if i == 1 {
				if err := l.SetState(st); err != nil {
					t.Fatal(err)
				}
			}
			orders[i] = epoch(t, x, l)
		}
		if !slices.EqualFunc(orders[0], orders[1], slices.Equal) {
			t.Errorf("the epochs are %v", orders)
		}
	})
}

func TestLoaderStateRefused(t *testing.T) {
	l, err := data.NewLoader(table(t, 10), data.LoaderOpt{BatchSize: 4, Shuffle: true, Seed: 2})
	if err != nil {
		t.Fatal(err)
	}
	good := l.State()
	for want, change := range map[string]func(st *data.LoaderState){
		"the state is of a loader of 11 samples in batches of 4, shuffled from seed 2, this one is of 10 samples": func(
			st *data.LoaderState) {
			st.Samples = 11
		},
		"in batches of 5": func(st *data.LoaderState) {
			st.BatchSize = 5
		},
		"with DropLast": func(st *data.LoaderState) {
			st.DropLast = true
		},
		"from seed 3": func(st *data.LoaderState) { st.Seed = 3 },
		"samples in batches of 4, this one": func(st *data.LoaderState) {
			st.Shuffle = false
		},
		"batch 4 of epoch 0, and an epoch has 3": func(st *data.LoaderState) { st.Batch = 4 },
		"batch 0 of epoch -1":                    func(st *data.LoaderState) { st.Epoch = -1 },
		"more than can be drawn; give a state that St": func(st *data.LoaderState) {
			st.Epoch = 1 << 40
		},
	} {
		st := good
		change(&st)
		if err := l.SetState(st); err == nil || !strings.Contains(err.Error(), want) || l.State() != good {
			t.Errorf("got %v, want %q", err, want)
		}
	}
	var none *data.Loader
	if err := none.SetState(good); err == nil || none.State() != (data.LoaderState{}) {
		t.Error("a nil loader has a state")
	}
}

package data

import (
	"fmt"

	"tenon.dev/fault"
	"tenon.dev/internal/mersenne"
	"tenon.dev/internal/origin"
)

// LoaderState is the position of a Loader, with the data that must be the same for another one to resume from there.
type LoaderState struct {
	// Epoch counts the epochs that have ended. Batch counts the batches that the current epoch has yielded, including the one in the
	// loop's body; it is 0 between epochs.
	Epoch int `torch:"epoch"`
	Batch int `torch:"batch"`
	// Samples is the length of the data set.
	Samples int `torch:"samples"`
	// BatchSize, DropLast, Shuffle and Seed are the options that decide which samples a batch has.
	BatchSize int    `torch:"batch_size"`
	DropLast  bool   `torch:"drop_last"`
	Shuffle   bool   `torch:"shuffle"`
	Seed      uint64 `torch:"seed"`
}

// maxDraws bounds the numbers drawn to reach a state, which takes some minutes.
const maxDraws = 1 << 36

// State returns the loader's position. At the end of a loop's body it is the position after the current batch. A loop that was left early
// has ended its epoch. The state of a nil loader is zero.
func (l *Loader) State() LoaderState {
	if l == nil || l.ds == nil {
		return LoaderState{}
	}
	return LoaderState{Epoch: l.epoch, Batch: l.batch, Samples: l.ds.Len(), BatchSize: l.opt.BatchSize, DropLast: l.opt.DropLast,
		Shuffle: l.opt.Shuffle, Seed: l.opt.Seed}
}

// SetState makes the loader resume from st, a state of a loader with the same options and number of samples: the next Epoch yields the
// remaining batches in the same order, and none if none remained. It is an error while an epoch is in progress. An error changes nothing.
func (l *Loader) SetState(st LoaderState) (err error) {
	defer origin.Located("data.Loader.SetState", &err)
	if l == nil || l.ds == nil {
		return fault.New(fault.Invalid, "the loader is nil or a zero value; use one that NewLoader returned")
	}
	if l.running > 0 {
		return fault.New(fault.Invalid, "the loader's epoch is under way; set its state before the loop over Epoch")
	}
	want := l.State()
	want.Epoch, want.Batch = st.Epoch, st.Batch
	if st != want {
		return fault.New(fault.Invalid, "the state is of a loader of %s, this one is of %s; make it with the same options",
			st.options(), want.options())
	}
	if st.Epoch < 0 || st.Batch < 0 || st.Batch > l.Len() {
		return fault.New(fault.Invalid,
			"the state is at batch %d of epoch %d, and an epoch has %d batches; give a state that State returned", st.Batch,
			st.Epoch, l.Len())
	}
	if st.Epoch > maxDraws/max(st.Samples, 1) {
		return fault.New(fault.Invalid,
			"the state counts %d epochs of %d samples, more than can be drawn; give a state that State returned", st.Epoch, st.Samples)
	}
	random := mersenne.New(l.opt.Seed)
	if l.opt.Shuffle {
		for range st.Epoch {
			random.SkipPerm(st.Samples)
		}
	}
	l.random, l.drawn, l.epoch, l.batch = random, st.Epoch, st.Epoch, st.Batch
	return nil
}

// options prints everything but the position.
func (st LoaderState) options() string {
	text := fmt.Sprintf("%d samples in batches of %d", st.Samples, st.BatchSize)
	if st.DropLast {
		text += " with DropLast"
	}
	if st.Shuffle {
		text += fmt.Sprintf(", shuffled from seed %d", st.Seed)
	}
	return text
}

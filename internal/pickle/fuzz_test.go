package pickle_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"tenon.dev/internal/cost"
	"tenon.dev/internal/pickle"
)

// fuzzMemory bounds the memory of a fuzzed pickle.
const fuzzMemory = 4 << 20

// fuzzBound returns the memory that a fuzzed pickle may take after read bytes were read.
func fuzzBound(read int64) int64 { return 1<<18 + 64*read }

// FuzzRead reads any bytes as a pickle: no input crashes the reader, or makes it allocate more than a small multiple of its bound, which
// grows with its length (the multiple covers the garbage of growing slices). A valid pickle reads the same when values are taken out and
// put back.
func FuzzRead(f *testing.F) {
	for _, name := range []string{"circle.pickle", "circle_dict.pickle", "ordered.pickle"} {
		f.Add(file(f, name))
	}
	for p := range 6 {
		f.Add(file(f, fmt.Sprintf("values_p%d.pickle", p))[:300])
	}
	paged := []byte("N")
	for i := range uint32(200) { // memo entries that take a page each
		paged = binary.LittleEndian.AppendUint32(append(paged, 'r'), i*4095)
	}
	f.Add(append(paged, '.'))
	for _, s := range []string{"(lp0\n(lp1\nI4\naa.", "](]\x94(K\x01eh\x00e.", "cm\nn\n(K\x01tR}b.",
		"\x8e\x00\x00\x10\x00\x00\x00\x00\x00abc", "(K\x01im\nC\n.", "K\x05Q."} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		var d *pickle.Data
		var err error
		cost.Within(t, int(2<<20+8*min(fuzzMemory, fuzzBound(int64(len(data))))), func() {
			d, err = pickle.Read(bytes.NewReader(data), pickle.Options{MaxMemory: fuzzMemory, Bound: fuzzBound, Global: allow,
				Persistent: true})
		})
		if err != nil {
			return
		}
		if d.Used() > min(fuzzMemory, fuzzBound(int64(len(data)))) {
			t.Errorf("%d bytes are in use", d.Used())
		}
		_ = show(d, d.Root(), 3)
		var took []pickle.Kind
		_, err = pickle.Read(bytes.NewReader(data), pickle.Options{MaxMemory: fuzzMemory, Global: allow, Persistent: true,
			Take: func(d *pickle.Data, k pickle.Kind, items []pickle.Ref) (pickle.Taken, error) {
				values, marks, at := d.Stack()
				if at >= len(values) && len(values) > 0 || len(marks) > 0 && marks[len(marks)-1] > len(values) {
					t.Errorf("position %d of %d, marks at %v", at, len(values), marks)
				}
				took = append(took, k)
				return pickle.Taken{Verdict: pickle.Verdict(len(took) % 3), Value: uint64(len(took))}, nil
			}})
		_ = err // adding to a taken value is an error
	})
}

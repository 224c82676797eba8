package core

import (
	"math"

	"tenon.dev/fault"
)

// maxPieces bounds the number of tensors that one call returns, each of which takes some hundred bytes.
const maxPieces = 1 << 20

// piecesFit stops op if it would return more than maxPieces tensors: running out of memory would end the Go program.
func (x *Exec) piecesFit(op string, t *Tensor, n int) {
	if n > maxPieces {
		x.fail(op, fault.Invalid, []*Tensor{t}, "%d pieces are too many; ask for at most %d", n, maxPieces)
	}
}

// bytesFit returns an error if the elements of t need more memory than the machine has: that would end the Go program.
func (x *Exec) bytesFit(op string, t *Tensor) error {
	most := uint64(1 << 40) // if the machine's memory is unknown
	if m := x.s.host.Info().TotalMemory; m > 0 {
		most = m
	}
	n, size := uint64(t.Numel()), uint64(t.dt.Size())
	if size == 0 || n <= min(most, math.MaxInt)/size {
		return nil
	}
	return Try(func() {
		x.fail(op, fault.OutOfMemory, []*Tensor{t}, "%d elements of %d bytes do not fit into the machine's memory of %d bytes; read a "+
			"part of the tensor", n, size, most)
	})
}

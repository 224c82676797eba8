package alloc

import "math/bits"

// The sizes of PyTorch's allocator (c10/cuda/CUDACachingAllocator.cpp), in bytes.
const (
	mib = 1 << 20

	minBlockSize  = 512      // smallest block and unit of rounding
	smallSize     = 1 * mib  // largest size that the small pool serves
	smallBuffer   = 2 * mib  // segment of the small pool, page of its expandable segments
	largeBuffer   = 20 * mib // segment for requests below minLargeAlloc, page of expandable segments
	minLargeAlloc = 10 * mib // from here on a request gets a segment of its own size
	roundLarge    = 2 * mib  // rounded up to this
	sizeLimit     = 1 << 60  // "1EB": larger requests fail at once
)

// round returns the block size for a request of n bytes, 0 < n < sizeLimit.
func (s *Settings) round(n uint64) uint64 {
	if n < minBlockSize {
		return minBlockSize
	}
	if s.divided {
		if d := s.divisions(n); d > 1 && n > minBlockSize*d {
			return roundPower2(n, d)
		}
	}
	return (n + minBlockSize - 1) &^ (minBlockSize - 1)
}

// Round returns the size in bytes of the block for a request of n bytes, 0 < n < 2^60.
func (s *Settings) Round(n uint64) uint64 { return s.round(n) }

// roundPower2 rounds n up to the next of d equal steps between the powers of two around it. d is a power of two above 1.
func roundPower2(n, d uint64) uint64 {
	if n&(n-1) == 0 {
		return n
	}
	power := uint64(1) << (bits.Len64(n) - 1)
	step := power >> (bits.Len64(d) - 1)
	if step == 0 {
		return power << 1
	}
	return (n + step - 1) &^ (step - 1)
}

// segmentSize returns the bytes to ask the device for when a rounded size finds no free block.
func segmentSize(size uint64) uint64 {
	switch {
	case size <= smallSize:
		return smallBuffer
	case size < minLargeAlloc:
		return largeBuffer
	}
	return (size + roundLarge - 1) &^ (roundLarge - 1)
}

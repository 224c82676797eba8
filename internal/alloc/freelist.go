package alloc

import (
	"cmp"
	"math/bits"
	"slices"
)

// freeList holds free blocks ordered by size, then address. It is a zip tree (Tarjan, Levy, Timmel: Zip Trees, 2018): a search tree that is
// also a heap by the blocks' ranks, drawn once per block with P(rank >= k) = 2^-k, with the smaller key above among equal ranks. So it is
// as shallow as a balanced tree in expectation, needs no rebalancing, and lives in the blocks.
type freeList struct {
	root *Block
}

// before says whether a sorts before b.
func before(a, b *Block) bool {
	return a.size < b.size || a.size == b.size && a.addr < b.addr
}

// insert adds b, which is in no list.
func (f *freeList) insert(b *Block) {
	link := &f.root
	n := *link
	for n != nil && (n.rank > b.rank || n.rank == b.rank && before(n, b)) {
		if before(n, b) {
			link = &n.right
		} else {
			link = &n.left
		}
		n = *link
	}
	*link = b
	low, high := &b.left, &b.right // unzip what hung here into the parts below and above b
	for n != nil {
		if before(n, b) {
			*low = n
			low = &n.right
			n = n.right
		} else {
			*high = n
			high = &n.left
			n = n.left
		}
	}
	*low, *high = nil, nil
}

// remove takes b out. b must be in the list.
func (f *freeList) remove(b *Block) {
	link := &f.root
	for n := *link; n != b; n = *link {
		if before(n, b) {
			link = &n.right
		} else {
			link = &n.left
		}
	}
	unlink(link)
}

// unlink takes out the block that *link points to, by zipping its children together.
func unlink(link **Block) {
	b := *link
	low, high := b.left, b.right
	b.left, b.right = nil, nil
	for low != nil && high != nil {
		if low.rank >= high.rank {
			*link = low
			link = &low.right
			low = low.right
		} else {
			*link = high
			link = &high.left
			high = high.left
		}
	}
	if low != nil {
		*link = low
	} else {
		*link = high
	}
}

// find returns the link to the smallest block of at least size bytes, the lowest address on ties; nil if there is none.
func (f *freeList) find(size uint64) **Block {
	var found **Block
	link := &f.root
	for n := *link; n != nil; n = *link {
		if n.size >= size {
			found = link
			link = &n.left
		} else {
			link = &n.right
		}
	}
	return found
}

// over returns the block that follows b in order, or nil.
func (f *freeList) over(b *Block) *Block {
	var found *Block
	for n := f.root; n != nil; {
		if before(b, n) {
			found, n = n, n.left
		} else {
			n = n.right
		}
	}
	return found
}

// under returns the block that comes before b in order, or nil.
func (f *freeList) under(b *Block) *Block {
	var found *Block
	for n := f.root; n != nil; {
		if before(n, b) {
			found, n = n, n.right
		} else {
			n = n.left
		}
	}
	return found
}

// below returns the largest block of less than size bytes, the highest address on ties, or nil.
func (f *freeList) below(size uint64) *Block {
	var found *Block
	for n := f.root; n != nil; {
		if n.size < size {
			found, n = n, n.right
		} else {
			n = n.left
		}
	}
	return found
}

// appendAll appends the list's blocks to s in order.
func (f *freeList) appendAll(s []*Block) []*Block { return appendTree(s, f.root) }

func appendTree(s []*Block, n *Block) []*Block {
	if n == nil {
		return s
	}
	s = appendTree(s, n.left)
	s = append(s, n)
	return appendTree(s, n.right)
}

// drawRank draws the rank of a new block from a fixed sequence (splitmix64), so that runs repeat exactly.
func (m *books) drawRank() uint8 {
	m.ranks += 0x9e3779b97f4a7c15
	z := m.ranks
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return uint8(bits.TrailingZeros64(z ^ z>>31))
}

// silo holds the free blocks of one stream in one pool. A block never changes its silo.
type silo struct {
	pool     *pool
	stream   Stream
	free     freeList
	unmapped []*Block // address space of expandable segments without memory, by address
}

func byAddr(b *Block, addr uint64) int { return cmp.Compare(b.addr, addr) }

func (l *silo) insertUnmapped(b *Block) {
	i, _ := slices.BinarySearchFunc(l.unmapped, b.addr, byAddr)
	l.unmapped = slices.Insert(l.unmapped, i, b)
}

func (l *silo) removeUnmapped(b *Block) {
	if i, ok := slices.BinarySearchFunc(l.unmapped, b.addr, byAddr); ok {
		l.unmapped = slices.Delete(l.unmapped, i, i+1)
	}
}

// insertFree adds b to the free list and starts its age.
func (l *silo) insertFree(b *Block) {
	b.ageBase = l.pool.lookups
	l.free.insert(b)
}

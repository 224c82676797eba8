// Package ordered is a list of values sorted by a number that each has. The time to find, add or remove one hardly grows with the list,
// wherever it is. It must not depend on what the values are.
package ordered

import (
	"iter"
	"slices"
	"sort"
)

// most is how many values a piece has at most: few enough that moving them is quick, enough that there are few pieces.
const most = 512

// List is a list of values by their key, ascending; of equal keys that which was added first comes first. New makes one.
type List[T any] struct {
	key func(T) uint64
	// pieces are runs of 1 to most values, in their order.
	pieces [][]T
	n      int
}

// New returns an empty list of values with this key, which never changes while a value is in the list.
func New[T any](key func(T) uint64) *List[T] { return &List[T]{key: key} }

// Len returns the number of values.
func (l *List[T]) Len() int { return l.n }

// At is a place in a list: that of a value, or before the first or behind the last. It is void once a value is added or removed.
type At struct{ piece, i int }

// Value returns the value at a place, which may be changed but for its key; nil before the first and behind the last.
func (l *List[T]) Value(at At) *T {
	if at.piece < 0 || at.piece >= len(l.pieces) {
		return nil
	}
	return &l.pieces[at.piece][at.i]
}

// Last returns the place of the last value whose key is at most k.
func (l *List[T]) Last(k uint64) At {
	p := sort.Search(len(l.pieces), func(p int) bool { return l.key(l.pieces[p][0]) > k }) - 1
	if p < 0 {
		return At{-1, 0}
	}
	return At{p, sort.Search(len(l.pieces[p]), func(i int) bool { return l.key(l.pieces[p][i]) > k }) - 1}
}

// Next returns the place behind.
func (l *List[T]) Next(at At) At {
	if at.piece >= 0 && at.piece < len(l.pieces) && at.i+1 < len(l.pieces[at.piece]) {
		return At{at.piece, at.i + 1}
	}
	return At{at.piece + 1, 0}
}

// Add adds a value.
func (l *List[T]) Add(v T) {
	l.n++
	at := l.Last(l.key(v))
	if at.piece < 0 {
		if len(l.pieces) == 0 {
			l.pieces = append(l.pieces, []T{v})
			return
		}
		at = At{0, -1}
	}
	p := slices.Insert(l.pieces[at.piece], at.i+1, v)
	l.pieces[at.piece] = p
	if len(p) > most {
		half := len(p) / 2
		l.pieces[at.piece] = p[:half:half]
		l.pieces = slices.Insert(l.pieces, at.piece+1, slices.Clone(p[half:]))
	}
}

// Remove removes the value at a place, which has one.
func (l *List[T]) Remove(at At) {
	l.n--
	p := slices.Delete(l.pieces[at.piece], at.i, at.i+1)
	l.pieces[at.piece] = p
	if len(p) == 0 {
		l.pieces = slices.Delete(l.pieces, at.piece, at.piece+1)
	}
}

// All yields the values in their order.
func (l *List[T]) All() iter.Seq[*T] {
	return func(yield func(*T) bool) {
		for _, p := range l.pieces {
			for i := range p {
				if !yield(&p[i]) {
					return
				}
			}
		}
	}
}

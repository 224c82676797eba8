package core

import (
	"tenon.dev/dtype"
	"tenon.dev/internal/rt"
)

// scope is a list of handles that are closed together. The list is a strong reference: its tensors are never loose.
type scope struct {
	s      *session
	parent *scope
	list   []*Tensor
	// capture is the graph that was being recorded when the scope was opened.
	capture *capture
	// casts are parameters that autocast converted, and castAt holds their indexes.
	casts  []keptCast
	castAt map[castKey]int
}

// leave takes t off the end of the list, so that temporaries that are closed one after the other do not make the list grow.
func (sc *scope) leave(t *Tensor) {
	if n := len(sc.list) - 1; n >= 0 && sc.list[n] == t {
		sc.list[n] = nil
		sc.list = sc.list[:n]
	}
}

// adopt gives the handle to the innermost scope, or makes it loose.
func (s *session) adopt(t *Tensor) {
	t.scope, t.maker = s.scope, s.gate.number
	if s.scope == nil {
		t.st.loosen()
		return
	}
	s.scope.list = append(s.scope.list, t)
}

// push opens a scope; pop closes the innermost one and all its handles.
func (s *session) push() {
	var sc *scope
	if n := len(s.spare); n > 0 {
		sc, s.spare = s.spare[n-1], s.spare[:n-1]
	} else {
		sc = &scope{s: s}
	}
	sc.parent, sc.capture = s.scope, s.capture
	s.scope = sc
}

func (s *session) pop() {
	sc := s.scope
	s.scope = sc.parent
	list := sc.list
	sc.list = sc.list[:0]
	for i, t := range list {
		if t.scope == sc {
			t.closeAs(scopeEnded)
		}
		list[i] = nil
	}
	if len(sc.casts) > 0 {
		sc.dropCasts()
	}
	sc.parent, sc.capture = nil, nil
	s.spare = append(s.spare, sc)
}

// popTo closes scopes until sc is the innermost.
func (s *session) popTo(sc *scope) {
	if s.torn() {
		return
	}
	for s.scope != sc {
		s.pop()
	}
}

// lift moves a handle of the innermost scope to its parent.
func (s *session) lift(t *Tensor) {
	if t == nil || s.scope == nil || t.scope != s.scope {
		return
	}
	p := s.scope.parent
	t.scope = p
	if p == nil {
		t.st.loosen()
		return
	}
	p.list = append(p.list, t)
}

// Keep moves t from the innermost scope to the one around it and returns it; with no scope around, t becomes loose. A tensor of
// another scope stays where it is.
func (x *Exec) Keep(t *Tensor) *Tensor {
	x.s.lift(t)
	return t
}

// Within runs f in a new scope, closes the tensors that f made, even if f panics, and moves f's result to the surrounding scope.
func (x *Exec) Within(f func(x *Exec) *Tensor) *Tensor {
	x.usable("Within")
	s := x.s
	defer s.restore(s.mark())
	s.push()
	var t *Tensor
	s.outside("Within", func() { t = f(x) })
	s.lift(t)
	return t
}

// WithinMany is Within for functions with several results.
func (x *Exec) WithinMany(f func(x *Exec) []*Tensor) []*Tensor {
	x.usable("WithinMany")
	s := x.s
	defer s.restore(s.mark())
	s.push()
	var ts []*Tensor
	s.outside("WithinMany", func() { ts = f(x) })
	for _, t := range ts {
		s.lift(t)
	}
	return ts
}

// scoped is Scope for functions of the library.
func (x *Exec) scoped(f func(x *Exec)) {
	defer x.s.restore(x.s.mark())
	x.s.push()
	f(x)
}

// Scope runs f in a new scope and closes the tensors that f made, even if f panics.
func (x *Exec) Scope(f func(x *Exec)) {
	x.usable("Scope")
	defer x.s.restore(x.s.mark())
	x.s.push()
	x.s.outside("Scope", func() { f(x) })
}

// keptCast is a converted parameter that a scope keeps.
type keptCast struct {
	key castKey
	t   *Tensor
	// The parameter's version and last write at the conversion. The write is needed because a graph that changes the parameter counts no
	// version.
	version uint32
	writer  uint64
	stream  *rt.Stream
	pool    *rt.MemPool
}

type castKey struct {
	leaf *leaf
	to   dtype.DType
}

// dropCasts closes the copies that the scope keeps.
func (sc *scope) dropCasts() {
	for i := range sc.casts {
		sc.casts[i].t.close()
		sc.casts[i] = keptCast{}
	}
	sc.casts = sc.casts[:0]
	clear(sc.castAt)
}

package core

import (
	"tenon.dev/dtype"
	"tenon.dev/fault"
)

// castClass says what autocast does with the operands of an operation.
type castClass uint8

const (
	castNone    castClass = iota
	castLow               // to the low-precision type
	castFloat32           // to float32
	castResult            // operands stay; the result is float32, unless the call asks for a type
	castWidest            // to float32 if one of them is, else to the low-precision type
)

// String says what the class does with operands.
func (c castClass) String() string {
	return [...]string{"none", "low precision", "float32", "result in float32", "widest"}[c]
}

// Autocast returns the Exec under which matrix products and convolutions run in d, Float16 or BFloat16, and operations that need the range
// or the digits of Float32 run in Float32; DType(0) turns it off. It converts the floating-point operands of an operation, except those of
// type Float64 and those on another device, and a gradient comes back in the operand's own type. Operations that write to a tensor that
// they are given, such as AddInto, convert nothing. BFloat16 needs a device of compute capability 8.0.
//
// Call Autocast in the scope of a step. A parameter, which is a Float32 leaf that requires grad, is then converted once for all operations
// that use it, and the converted copy is closed with that scope; after a change of the parameter it is converted again. If no scope is open
// when Autocast is called, the copy lasts as long as the outermost scope that is open at the conversion, and is not kept if there is none.
// Autocast of an Exec that autocasts, or did, shares the copies of the first one. AutocastCache turns them off. A graph converts the
// parameters that it uses each time it runs, and keeps no copies.
func (x *Exec) Autocast(d dtype.DType) *Exec {
	switch d {
	case dtype.Invalid, dtype.Float16, dtype.BFloat16:
	default:
		x.fail("Autocast", fault.Invalid, nil, "autocast computes in float16 or bfloat16, not in %v; tenon.DType(0) switches it off", d)
	}
	if dev := x.Device(); d == dtype.BFloat16 && !dev.Host && dev.Info().Major < 8 {
		x.fail("Autocast", fault.Unsupported, nil, "Current CUDA Device does not support bfloat16. Please switch dtype to float16")
	}
	m := x.m
	m.autocast = d
	if d != dtype.Invalid && x.s.capture == nil && !x.s.isOpen(m.casts) {
		m.casts = x.s.scope
	}
	return x.with(m)
}

// AutocastDType returns the type in which products run under autocast, or DType(0) where it is off.
func (x *Exec) AutocastDType() dtype.DType { return x.m.autocast }

// AutocastCache returns the Exec on which autocast keeps the copies of parameters that it makes, which is the default, or does not.
func (x *Exec) AutocastCache(on bool) *Exec {
	m := x.m
	m.noCasts = !on
	return x.with(m)
}

// AutocastCached reports whether autocast keeps the copies of parameters that it makes.
func (x *Exec) AutocastCached() bool { return !x.m.noCasts }

// uncast returns x without autocast.
func (x *Exec) uncast() *Exec {
	if x.m.autocast == dtype.Invalid {
		return x
	}
	if x.off == nil {
		x.off = x.Autocast(dtype.Invalid)
	}
	return x.off
}

// castable reports whether autocast may convert t.
func (x *Exec) castable(t *Tensor) bool {
	return t != nil && t.st != nil && t.dt.IsFloat() && t.dt != dtype.Float64 && t.st.dev == x.m.stream.Device()
}

// castType returns the type to which class c converts the operands that each yields, or Invalid if c converts none.
func (x *Exec) castType(c castClass, each func(yield func(t *Tensor) bool)) (dtype.DType, error) {
	switch c {
	case castLow:
		return x.m.autocast, nil
	case castFloat32:
		return dtype.Float32, nil
	case castWidest:
		to := x.m.autocast
		for t := range each {
			switch {
			case !x.castable(t) || t.dt == x.m.autocast:
			case t.dt == dtype.Float32:
				to = dtype.Float32
			default:
				return 0, fault.New(fault.Invalid, "autocast to %v brings such operands and float32 ones to one type, but one is %v; "+
					"convert it first", x.m.autocast, t.dt)
			}
		}
		return to, nil
	}
	return dtype.Invalid, nil
}

// autocast converts the operands as the operation's class says.
func (f *frame) autocast() {
	x := f.x
	if f.row.cast == castResult {
		if f.dt == dtype.Invalid && x.castable(f.in[0]) {
			f.dt = dtype.Float32
		}
		return
	}
	to, err := x.castType(f.row.cast, func(yield func(t *Tensor) bool) {
		for i := 0; i < f.ins; i++ {
			if !yield(f.in[i]) {
				return
			}
		}
	})
	f.check(err)
	for i := 0; i < f.ins; i++ {
		if t := f.in[i]; x.castable(t) && t.dt != to && f.hosts&(1<<i) == 0 {
			c, kept := x.castTo(t, to)
			if !kept {
				f.temp(c)
			}
			f.in[i] = c
		}
	}
}

// casting converts the operands of a composite that autocast treats as one operation of class c, and returns the Exec that runs it, on
// which autocast is off. It is called in the composite's scope.
func (x *Exec) casting(op string, c castClass, ts ...**Tensor) *Exec {
	if x.m.autocast == dtype.Invalid {
		return x
	}
	to, err := x.castType(c, func(yield func(t *Tensor) bool) {
		for _, t := range ts {
			if !yield(*t) {
				return
			}
		}
	})
	if err != nil {
		var all []*Tensor
		for _, t := range ts {
			all = append(all, *t)
		}
		x.fail(op, fault.Invalid, all, "%s", err.(*fault.Error).Msg)
	}
	for _, t := range ts {
		if x.castable(*t) && (*t).dt != to {
			*t, _ = x.castTo(*t, to)
		}
	}
	return x.uncast()
}

// castTo returns t as type to. kept says that the copy belongs to a scope that keeps it for other operations.
func (x *Exec) castTo(t *Tensor, to dtype.DType) (c *Tensor, kept bool) {
	var home *scope
	if to == x.m.autocast && t.dt == dtype.Float32 && t.leaf != nil && t.leaf.owner == t && t.view == nil && !x.m.noCasts {
		home = x.castHome()
	}
	if home == nil {
		return x.uncast().ToDType(t, to), false
	}
	k := keptCast{key: castKey{t.leaf, to}, version: t.st.version.Load(), writer: t.st.writer.Load(), stream: x.m.stream, pool: x.m.pool}
	at, found := home.castAt[k.key]
	if found {
		old := &home.casts[at]
		fresh := old.version == k.version && old.writer == k.writer
		// A copy that was made without recording has no path back to the parameter. With manual ordering, nobody would order the use of a
		// copy from another stream, since the program does not see the copy.
		usable := (x.m.noGrad || old.t.node != nil) && (!x.m.manual || old.stream == k.stream) && old.pool == k.pool
		if fresh && usable {
			return old.t, true
		}
		old.t.close()
	}
	k.t = x.uncast().ToDType(t, to)
	x.s.keepCast(home, k, at, found)
	return k.t, true
}

// keepCast moves the newest tensor of the innermost scope, a copy, to the scope home. If found, it replaces the copy at index at.
func (s *session) keepCast(home *scope, k keptCast, at int, found bool) {
	list := s.scope.list
	s.scope.list = list[:len(list)-1]
	list[len(list)-1] = nil
	k.t.scope = home
	if s.capture != nil { // the scope's list goes to the graph, whose memory this is
		home.list = append(home.list, k.t)
	}
	if found {
		home.casts[at] = k
		return
	}
	if home.castAt == nil {
		home.castAt = map[castKey]int{}
	}
	home.castAt[k.key] = len(home.casts)
	home.casts = append(home.casts, k)
}

// castHome returns the scope that keeps x's copies of parameters, or nil: the mode's scope or, if that is not open, the outermost one.
// Copies that are recorded in a graph stay in the graph's scopes.
func (x *Exec) castHome() *scope {
	s := x.s
	sc := s.scope
	for ; sc != nil && sc != x.m.casts; sc = sc.parent {
		if sc.parent == nil || sc.capture != s.capture {
			break
		}
	}
	return sc
}

// isOpen reports whether sc is among the session's open scopes.
func (s *session) isOpen(sc *scope) bool {
	for o := s.scope; o != nil; o = o.parent {
		if o == sc {
			return true
		}
	}
	return false
}

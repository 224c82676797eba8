package pickle

import (
	"tenon.dev/fault"
)

// construct executes the instructions that name or call code: it looks up and calls nothing, and the values only describe what Python
// would do.
func (m *machine) construct(op byte) error {
	switch op {
	case opGlobal:
		module, name, err := m.twoLines()
		if err != nil {
			return err
		}
		return m.global(module, name)
	case opStackGlobal:
		top, err := m.top(2)
		if err != nil {
			return err
		}
		module, ok1 := m.Str(top[0])
		name, ok2 := m.Str(top[1])
		if !ok1 || !ok2 {
			return m.broken("a global is named by a %v and a %v", top[0].Kind(), top[1].Kind())
		}
		m.drop(2)
		return m.global(module, name)
	case opReduce, opNewObj:
		return m.call(2)
	case opNewObjEx:
		return m.call(3)
	case opObj:
		n, err := m.aboveMark()
		if err != nil {
			return err
		}
		if n == 0 {
			return m.broken("an object has no class")
		}
		m.marks = m.marks[:len(m.marks)-1]
		if err := m.tuple(n - 1); err != nil {
			return err
		}
		return m.call(2)
	case opInst:
		module, name, err := m.twoLines()
		if err != nil {
			return err
		}
		if err := m.gather(KindTuple); err != nil {
			return err
		}
		if err := m.global(module, name); err != nil {
			return err
		}
		n := len(m.stack)
		m.stack[n-1], m.stack[n-2] = m.stack[n-2], m.stack[n-1]
		return m.call(2)
	case opBuild:
		return m.build()
	case opPersID:
		b, err := m.src.line()
		if err != nil {
			return err
		}
		if err := m.pushText(b); err != nil {
			return err
		}
	}
	return m.persistent()
}

func (m *machine) twoLines() (module, name string, err error) {
	b, err := m.src.line()
	if err != nil {
		return "", "", err
	}
	module = string(b)
	b, err = m.src.line()
	return module, string(b), err
}

// global pushes the name of an allowed class or function.
func (m *machine) global(module, name string) error {
	if m.o.Global == nil || !m.o.Global(module, name) {
		return fault.New(fault.Invalid,
			"the pickle names %s.%s, and what it may hold here is data; a file that needs code to be read is refused", module, name)
	}
	if err := m.charge(len(module) + len(name) + costString); err != nil {
		return err
	}
	m.globals = append(m.globals, [2]string{module, name})
	return m.push(pack(KindGlobal, uint64(len(m.globals)-1)))
}

// call makes an object of a global, its arguments and (with n = 3) its keyword arguments, which become the last argument.
func (m *machine) call(n int) error {
	top, err := m.top(n)
	if err != nil {
		return err
	}
	if k := top[0].Kind(); k != KindGlobal {
		return m.broken("a %v is called", k)
	}
	if k := top[1].Kind(); k != KindTuple {
		return m.broken("a call has a %v for arguments", k)
	}
	from := len(m.stack) - n
	if err := m.adopt(from); err != nil {
		return err
	}
	callee, args := m.stack[from], m.stack[from+1]
	v, err := m.newMore(KindObject, more{head: callee, args: args, state: pack(KindNone, 0)})
	if err != nil {
		return err
	}
	if n == 3 {
		if err := m.add(args, m.stack[from+2:]); err != nil {
			return err
		}
	}
	m.stack = m.stack[:from]
	return m.push(v)
}

func (m *machine) newMore(k Kind, parts more) (Ref, error) {
	v, err := m.newObject(k)
	if err != nil {
		return 0, err
	}
	if err := m.charge(32); err != nil {
		return 0, err
	}
	m.objs[v.payload()].more = &parts
	return v, nil
}

// build makes the value on top the state of the object beneath it.
func (m *machine) build() error {
	v, err := m.under(1, false, KindObject)
	if err != nil {
		return err
	}
	if err := m.adopt(len(m.stack) - 1); err != nil {
		return err
	}
	m.objs[v.payload()].more.state = m.stack[len(m.stack)-1]
	m.drop(1)
	return nil
}

// persistent replaces the value on top by the object outside the pickle that it identifies.
func (m *machine) persistent() error {
	top, err := m.top(1)
	if err != nil {
		return err
	}
	if !m.o.Persistent {
		return fault.New(fault.Invalid, "the pickle refers to an object outside it at byte %d, and there are none here", m.src.offset())
	}
	v, err := m.newMore(KindPersistent, more{head: top[0]})
	if err != nil {
		return err
	}
	m.drop(1)
	return m.push(v)
}

//go:build tenon_sim || !(linux || darwin || windows)

package dl

// Library is an open shared library. In this build none can be opened, so its methods are never called.
type Library struct{}

// Open fails with ErrLeftOut.
func Open(names ...string) (*Library, error) { return nil, ErrLeftOut }

// Name returns "".
func (l *Library) Name() string { return "" }

// Path returns "".
func (l *Library) Path() string { return "" }

// Symbol fails with ErrLeftOut.
func (l *Library) Symbol(name string) (Proc, error) { return 0, ErrLeftOut }

// Close fails with ErrLeftOut.
func (l *Library) Close() error { return ErrLeftOut }

// Proc is the address of a C function. In this build there are none to call.
type Proc uintptr

// Call returns 0.
func (p Proc) Call(args ...uintptr) uintptr { return 0 }

// CallKept returns 0.
func (p Proc) CallKept(args ...uintptr) uintptr { return 0 }

// Callback returns 0, which is not a function.
func Callback(fn any) uintptr { return 0 }

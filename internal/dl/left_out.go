//go:build tenon_sim || !(linux || darwin || windows)

package dl

// Library is an open shared library. In this build none opens, so its methods are never reached.
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

// Proc is the address of a C function. In this build there is none, so none can be called.
type Proc uintptr

// Call returns 0.
func (p Proc) Call(args ...uintptr) uintptr { return 0 }

// CallKept returns 0.
func (p Proc) CallKept(args ...uintptr) uintptr { return 0 }

// Callback returns 0, the address of no function.
func Callback(fn any) uintptr { return 0 }

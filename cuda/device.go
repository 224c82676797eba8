// Package cuda is the public interface to a device: its properties, streams, events and memory.
// It must not depend on tensors.
//
// The Device method of an Exec (package tenon) returns the Exec's device.
package cuda

import (
	"cmp"
	"errors"
	"fmt"
	"go/token"
	"runtime"
	"strings"

	"tenon.dev/fault"
	"tenon.dev/internal/origin"
	"tenon.dev/internal/rt"
	"tenon.dev/kernel"
)

// Device is an opened device. Its methods are safe for concurrent use.
type Device rt.Device

func (d *Device) rt() *rt.Device { return receiver((*rt.Device)(d)) }

// open returns d, whose method was called, for a call that a closed device refuses; see receiver.
func (d *Device) open() *rt.Device {
	r := d.rt()
	if err := r.Gone(); err != nil {
		panic(misused(err))
	}
	return r
}

// receiver returns v, whose method was called. If v is nil or a zero value, it panics with an error that names the method and the caller's
// line, as operations do; methods that return an error return that one instead.
func receiver[T interface{ Usable() error }](v T) T {
	if err := v.Usable(); err != nil {
		panic(misused(err))
	}
	return v
}

// returned turns a panic of receiver into the method's error, and gives an error that the method returns its name and the caller's line.
func returned(err *error) {
	switch r := recover().(type) {
	case nil:
		if *err != nil {
			located(err)
		}
	case *fault.Error:
		*err = r
	default:
		panic(r)
	}
}

// only returns the options of a call, which takes them once or not at all.
func only[T any](opts []T) (opt T, err error) {
	switch len(opts) {
	case 0:
		return opt, nil
	case 1:
		return opts[0], nil
	}
	return opt, misused(fault.New(fault.Invalid, "options are given %d times; give one %T", len(opts), opt))
}

// located does what misused does, for an error of a function that the method called.
func located(err *error) {
	var e *fault.Error
	if f, ok := (*err).(*fault.Error); ok && (f.Op == "" || f.Line == 0) {
		e = f
	}
	if file, line := origin.Here(); e != nil {
		if e.Line > 0 {
			file, line = e.File, e.Line
		}
		at := fault.At(e, file, line)
		at.Op = cmp.Or(e.Op, method())
		*err = at
	}
}

// misused adds the method and the caller's line to an error of receiver.
func misused(err error) error {
	var e *fault.Error
	if !errors.As(err, &e) {
		return err
	}
	e.Op = cmp.Or(e.Op, method())
	e.File, e.Line = origin.Here()
	return e
}

// method returns the name of the exported function or method that is under way.
func method() string {
	var pcs [8]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(3, pcs[:])])
	for fr, more := frames.Next(); more; fr, more = frames.Next() {
		if name := fr.Function[strings.LastIndexByte(fr.Function, '.')+1:]; token.IsExported(name) {
			return name
		}
	}
	return ""
}

// Name returns the name that the vendor gave the device, such as "NVIDIA H200"; a simulated device's begins with "Simulated".
func (d *Device) Name() string { return d.rt().Info().Name }

// String names the device, such as "device 1 (NVIDIA H200)", and the processor "CPU".
func (d *Device) String() string {
	r := (*rt.Device)(d)
	if err := r.Usable(); err != nil {
		return fmt.Sprintf("cuda.Device(%v)", err)
	}
	return r.String()
}

// Ordinal returns the device's number.
func (d *Device) Ordinal() int { return d.rt().Info().Ordinal }

// Capability returns the compute capability.
func (d *Device) Capability() (major, minor int) { return d.rt().Info().Major, d.rt().Info().Minor }

// PTX returns the program, in NVIDIA's language PTX, that a GPU of d's compute capability runs for k. A simulated device and the processor,
// which run k in another form, return what an H100 or H200 runs.
func (d *Device) PTX(k *kernel.Kernel) (text string, err error) {
	defer returned(&err)
	return d.rt().PTX(k)
}

// TotalMemory returns the device's memory in bytes.
func (d *Device) TotalMemory() uint64 { return d.rt().Info().TotalMemory }

// Multiprocessors returns the number of streaming multiprocessors.
func (d *Device) Multiprocessors() int { return d.rt().Info().Multiprocessors }

// Synchronize waits for all work of the device and returns its fault, if any.
func (d *Device) Synchronize() (err error) {
	defer returned(&err)
	if err := d.rt().RunDeferred("Synchronize", false); err != nil {
		return err
	}
	return d.rt().Synchronize()
}

// Package fault defines the library's error type and its kinds. It must not depend on any other package of the module.
package fault

import (
	"errors"
	"fmt"
	"strings"
)

// Kind classifies an Error by what the caller can do about it.
type Kind uint8

// The kinds of error. Their text forms are stable.
const (
	// Invalid: an argument is wrong (shape, dtype, device, range). Fix the call.
	Invalid Kind = iota + 1
	// OutOfMemory: the device or host has no memory left. Free memory, or make the work smaller.
	OutOfMemory
	// Device: the device reported a failure while it worked (illegal address, and on a GPU a failed assertion). The device is lost to this
	// process.
	Device
	// Capture: the call is illegal while a stream is captured.
	Capture
	// Unsupported: the request is valid, but this build or device does not support it.
	Unsupported
	// Closed: the object was closed before it was used.
	Closed
	// System: the operating system or a driver library failed.
	System
)

var kindNames = [...]string{"unknown", "invalid", "out of memory", "device", "capture", "unsupported", "closed", "system"}

// String returns the kind's stable name, such as "out of memory".
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return kindNames[0]
}

// Error is the error of every failed operation: what failed, on what operands, at which line of the caller, and why.
type Error struct {
	// Kind says what the caller can do about it.
	Kind Kind
	// Op is the operation as the user knows it, such as "Add"; empty if no operation was running.
	Op string
	// Operands describes the tensors of the call, such as "float32[3 1]".
	Operands []string
	// File and Line are the caller's: the first frame outside the library. Line 0 means unknown.
	File string
	Line int
	// Msg is one clear sentence that names the thing and the remedy, without a trailing full stop.
	Msg string
	// Suspects are the operations that may have caused a device fault, newest first in each stream, such as "Gather, operation 41 of
	// stream 0". A device runs asynchronously, so the operation that reports the fault is rarely the cause.
	Suspects []string
	// Cause is the underlying error, or nil.
	Cause error

	// of is the error that this one is a copy of, or nil; see At.
	of *Error
}

// At returns a copy of e with the line at which it occurred. [errors.Is] takes the copy for e, so a program can compare it with an error
// of its own that it panicked with.
func At(e *Error, file string, line int) *Error {
	if e == nil {
		return nil
	}
	c := *e
	c.File, c.Line, c.of = file, line, e
	return &c
}

// Is reports whether e is a copy of target that At made.
func (e *Error) Is(target error) bool {
	return e != nil && e.of != nil && (error(e.of) == target || e.of.Is(target))
}

// New returns an Error of kind k whose message is formatted by format and args.
func New(k Kind, format string, args ...any) *Error {
	return &Error{Kind: k, Msg: fmt.Sprintf(format, args...)}
}

// Wrap returns an Error of kind k over cause; the message is formatted by format and args.
// If cause already holds an *Error, its kind wins over k, so that a failure keeps its class on the way up.
func Wrap(k Kind, cause error, format string, args ...any) *Error {
	var inner *Error
	if errors.As(cause, &inner) {
		k = inner.Kind
	}
	return &Error{Kind: k, Msg: fmt.Sprintf(format, args...), Cause: cause}
}

// shownSuspects bounds the suspects that an error's text names.
const shownSuspects = 8

// Error returns op and operands, then the message, the cause, the suspects of a device fault and the caller's line, each where known. An
// op with which the cause begins and a line in which it ends are not repeated.
func (e *Error) Error() string {
	var b strings.Builder
	if e.Op != "" {
		b.WriteString(e.Op)
		if len(e.Operands) > 0 {
			b.WriteString("(" + strings.Join(e.Operands, ", ") + ")")
		}
		b.WriteString(": ")
	}
	b.WriteString(e.Msg)
	if e.Cause != nil {
		if text := e.Cause.Error(); text != "" { // an empty text says no more than the kind
			if e.Op != "" {
				text = strings.TrimPrefix(text, e.Op+": ")
			}
			b.WriteString(": " + text)
		}
	}
	if n := len(e.Suspects); n > 0 {
		b.WriteString("; the cause may be " + strings.Join(e.Suspects[:min(n, shownSuspects)], "; or "))
		if n > shownSuspects {
			fmt.Fprintf(&b, "; or %d others", n-shownSuspects)
		}
	}
	if e.Line > 0 {
		if place := fmt.Sprintf(" (at %s:%d)", e.File, e.Line); !strings.HasSuffix(b.String(), place) { // the cause may have said it
			b.WriteString(place)
		}
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Cause }

// KindOf returns the kind of the first *Error in err's chain, or 0 if there is none.
func KindOf(err error) Kind {
	var e *Error
	if errors.As(err, &e) {
		return e.Kind
	}
	return 0
}

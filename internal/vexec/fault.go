package vexec

import (
	"fmt"

	"tenon.dev/internal/kir"
)

// The codes of faults, with CUDA's numbers.
const (
	codeInvalidValue      = 1
	codeIllegalAddress    = 700
	codeOutOfResources    = 701
	codeAssert            = 710
	codeMisalignedAddress = 716
)

// Fault says why a kernel stopped.
type Fault struct {
	// Code is CUDA's error number: 700 illegal address, 710 assert, 716 misaligned address; 1 and 701 for a launch that could not begin.
	Code int
	// Kernel is the program's name; File and Line are the Go source location of the instruction, "" and 0 if unknown.
	Kernel, File string
	Line         int
	// Detail says what happened, and to which thread of which block. Said is only the text of a failed assertion, with its numbers.
	Detail, Said string
	// pass orders the faults of a launch.
	pass int
}

// Error returns one line with the kernel, the location and the detail.
func (f *Fault) Error() string {
	if f.File == "" {
		return fmt.Sprintf("kernel %s: %s", f.Kernel, f.Detail)
	}
	return fmt.Sprintf("kernel %s at %s:%d: %s", f.Kernel, f.File, f.Line, f.Detail)
}

// fail stops the worker by making all lanes inactive.
func (w *worker) fail(code, loc, lane int, format string, args ...any) {
	w.m = mask{}
	if w.fault != nil {
		return
	}
	p := &w.plan.k.p
	l := kir.Loc{}
	if loc > 0 && loc < len(p.Locs) {
		l = p.Locs[loc]
	}
	tx, ty, tz, cx := w.coords(lane)
	where := fmt.Sprintf(" by thread (%d,%d,%d) of block (%d,%d,%d)", tx, ty, tz, int(w.cta[0])+cx, w.cta[1], w.cta[2])
	if w.tile != "" {
		where = fmt.Sprintf(" for tile %s by block (%d,%d,%d)", w.tile, w.cta[0], w.cta[1], w.cta[2])
	}
	w.fault = &Fault{Code: code, Kernel: p.Name, File: l.File, Line: l.Line, pass: w.pass,
		Detail: fmt.Sprintf(format, args...) + where}
}

// coords returns a lane's thread coordinates and the index of its block in the pass.
func (w *worker) coords(lane int) (tx, ty, tz, cx int) {
	nx, ny, nz := int(w.ext[0]), int(w.ext[1]), int(w.ext[2])
	return lane % nx, lane / nx % ny, lane / (nx * ny) % nz, lane / (nx * ny * nz)
}

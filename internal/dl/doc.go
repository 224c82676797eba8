// Package dl opens shared libraries at run time, finds their symbols and calls them without cgo.
// It must not depend on what any library does: it passes words and addresses. It alone imports purego.
//
// # Memory
//
// C code sees Go memory only for the time of a call. [Proc.Call] keeps alive what its own argument list converts from an
// unsafe.Pointer ([Proc.CallKept] does not); memory that is reached through another pointer (an array of addresses, say) is the caller's to
// keep alive with runtime.KeepAlive, and it must be on the heap, because stacks move: [Address] sees to that.
//
// With the build tag tenon_sim nothing is opened: every Open fails with [ErrLeftOut], and the program links no dynamic loader.
package dl

import "errors"

// ErrLeftOut is what Open returns in a program built with the tag tenon_sim, or for a platform whose loader is not supported.
var ErrLeftOut = errors.New("this program was built without dynamic libraries (build tag tenon_sim)")

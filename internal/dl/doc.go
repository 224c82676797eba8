// Package dl opens shared libraries at run time, finds their symbols and calls them without cgo. It must not depend on what any library
// does: it passes words and addresses. It is the only package that imports purego.
//
// # Memory
//
// C code may use Go memory only during a call. [Proc.Call] keeps alive what its own argument list converts from an unsafe.Pointer
// ([Proc.CallKept] does not). Memory that is reached through another pointer (an array of addresses, say) must be kept alive by the caller
// with runtime.KeepAlive, and must be on the heap, because stacks move: [Address] ensures that.
//
// With the build tag tenon_sim nothing is opened: every Open fails with [ErrLeftOut], and the program links no dynamic loader.
package dl

import "errors"

// ErrLeftOut is the error of Open in a program built with the tag tenon_sim, or for a platform whose loader is not supported.
var ErrLeftOut = errors.New("this program was built without dynamic libraries (build tag tenon_sim)")

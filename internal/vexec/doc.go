// Package vexec runs kernel IR on the host and is the reference for its numerics: one pass computes up to 1024 threads, one operation at
// a time over the lanes of all of them. It must not depend on streams, devices or drivers, nor on the PTX back end.
//
// # Lanes
//
// A lane is one thread. A pass covers one block; if the program has no shared memory, barriers or exchanges between threads, it covers
// as many neighbouring blocks in x as fit. All lanes of a pass advance together, so a barrier needs no work. Operations without effects run
// on a whole range of lanes and may compute rubbish in lanes that are not active; operations with effects obey the mask.
//
// # Values
//
// A value is uniform (one scalar for the pass), affine (a [formula] in the thread's coordinates: kept as those numbers and only
// spelled out when an operation needs lanes), a span (a Bool that holds for a range of lanes: how i < n is kept), or
// varying (a register of lanes). Affine and span are attempts: where the numbers would wrap, or the shape does not fit, the value falls
// back to lanes, with the same results.
//
// # Compilation
//
// Before it is compiled a program is rewritten, exactly: equal operations are done once, and operations that do the same to every element
// of a vector access become one on wide values, which hold the elements of a lane side by side (see bundler). Registers
// are assigned by last use; what a loop does to a variable goes to the variable's own register.
//
// # Kernels
//
// An operation on lanes is a kern, found in a table: plain Go loops everywhere, AVX2 code on processors that have it. Both are written by
// lanegen and give the same bits; tests compare every operation on every type with an independent interpreter.
//
// # Tiles
//
// A tile is a dense matrix. Products keep k in ascending order for every element; on processors with FMA each step is rounded once,
// elsewhere twice, which is the freedom that the IR leaves to them.
package vexec

// Package vexec runs kernel IR on the host and is the reference for its numerics: one pass computes up to 1024 threads, one operation at
// a time over the lanes of all of them. It may not know streams, devices or drivers, nor the PTX back end.
//
// # Lanes
//
// A lane is one thread. A pass covers one block; if the program has no shared memory, barriers or exchanges between threads, it covers
// as many neighbouring blocks in x as fit. All lanes of a pass advance together, so a barrier needs no work. Operations without effects run
// on a whole range of lanes and may compute rubbish in lanes that are not active; operations with effects obey the mask.
//
// # Values
//
// A value is uniform (one scalar for the pass), affine (base + coefficients times the thread's coordinates: kept as those numbers and only
// spelled out when an operation needs lanes), a span (a Bool that holds for a range of lanes: how i < n is kept), or
// varying (a register of lanes). Affine and span are attempts: where the numbers would wrap, or the shape does not fit, the value falls back
// to lanes, with the same results.
package vexec

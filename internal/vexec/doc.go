// Package vexec runs kernel IR on the host and is the reference for its numerics: one pass computes up to 1024 threads, one operation at a
// time for all of them. It must not depend on streams, devices or drivers, nor on the PTX back end.
//
// # Lanes
//
// A lane is one thread. A pass covers one block. If the program has no shared memory, tiles, barriers, shuffles or votes, a pass covers as
// many neighbouring blocks in x as fit. All lanes of a pass advance together, so a barrier needs no work. Operations without effects run on
// a whole range of lanes and may compute garbage in inactive lanes; operations with effects obey the mask.
//
// # Values
//
// A value is uniform (one scalar for the pass), affine (a [formula] in the thread's coordinates, stored as its coefficients and only
// written out to lanes when an operation needs them), a span (a Bool that is true for a range of lanes, such as i < n), or varying (a
// register of lanes). Affine and span are attempts: where the numbers would wrap, or the form does not fit, the value falls back to lanes,
// with the same results.
//
// # Compilation
//
// Before a program is compiled, it is rewritten, without changing results. Equal operations are computed once. Operations that do the same
// to every element of a vector access become one operation on wide values, which hold the elements of a lane side by side (see bundler).
// Registers are allocated by last use; operations that update a variable in a loop write directly to the variable's register.
//
// A kernel is compiled when it is loaded, for passes of one block and of several, and then keeps no program, only the text that it was
// loaded from: a plan that reports accesses is made from it when a launch first wants one.
//
// # Kernels
//
// An operation on lanes is a kern, found in a table: plain Go loops everywhere, AVX2 code on processors that have it. lanegen generates
// both, and they give the same bits; tests compare every operation on every type with an independent interpreter.
//
// # Tiles
//
// A tile is a dense matrix. Products add up k in ascending order for every element. On processors with FMA each step is rounded once,
// elsewhere twice; the IR permits both.
package vexec

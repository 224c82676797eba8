// Package bench holds the benchmarks of the whole library, the runs that were recorded, and the generator of the page made from them.
// It may not be imported: what is measured does not know that it is.
package bench

//go:generate go run ./measurements

// Package bench holds the benchmarks of the whole library, the recorded runs, and the generator of the page that shows them.
// No other package may import it.
package bench

//go:generate go run ./measurements

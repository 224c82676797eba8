//go:build amd64 && !race

package core

// open lets the next goroutine in. A plain store has release semantics on this processor, which makes stores visible in order, and Go's
// compiler moves no store past another. An atomic one would cost as much as all the rest of the gate.
func (g *gate) open() { g.in += visits - busy }

//go:build amd64 && !race

package core

// open lets the next goroutine in. A plain store releases on this processor, where stores are seen in their order, and Go's compiler moves
// none over another store. The atomic one would cost as much as all the rest of the gate.
func (g *gate) open() { g.in += visits - busy }

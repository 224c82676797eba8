// Package membarrier lets one goroutine do without memory fences what others look at rarely. In the pattern "store mine, load theirs", each
// side needs a fence between the two, which costs as much as an atomic operation. With [Fence] the side that seldom runs pays for both: it
// makes every thread of the process pass a fence. The kernel does that since Linux 4.14 (membarrier(2), private expedited).
package membarrier

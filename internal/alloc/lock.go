package alloc

import "sync"

// lock is a mutex for sections that usually take some 50 ns. A goroutine that finds it locked tries again after pauses that double, and
// sleeps only after some 10 µs: sleeping and waking take longer than many sections, and most goroutines that wait for a sync.Mutex sleep.
// The pauses also leave the lock's cache line to the goroutine that holds it.
type lock struct{ sync.Mutex }

const (
	firstPause = 64 // iterations of an empty loop, which take about a cycle each
	tries      = 9
)

// Lock locks l.
func (l *lock) Lock() {
	if !l.TryLock() {
		l.wait()
	}
}

// wait waits for l while another goroutine has it.
func (l *lock) wait() {
	for n := range tries {
		for i := 0; i < firstPause<<n; i++ { // the compiler keeps empty loops
		}
		if l.TryLock() {
			return
		}
	}
	l.Mutex.Lock()
}

package core

import (
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/null"
)

// Copies of inputs allocate nothing once they have been made, by a kernel or by the driver.
func TestCopiesOfInputsAllocateNothing(t *testing.T) {
	x, _ := simExec(t, func(d driver.Device) driver.Device { return null.New(d.Info().Image) })
	var c inputCopies
	for _, n := range []int{1, 40} {
		copies := func() {
			c.reset(x.m.stream)
			for i := range n {
				c.add(1<<20+uint64(i)<<10, 1<<30+uint64(i)<<10, 512+i%2*3)
			}
			if err := c.issue(); err != nil {
				t.Fatal(err)
			}
		}
		copies()
		if a := testing.AllocsPerRun(100, copies); a != 0 {
			t.Errorf("%d copies make %v allocations", n, a)
		}
	}
}

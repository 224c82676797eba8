package hostsim

import (
	"errors"
	"sync/atomic"
	"time"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/vexec"
)

// runKernel runs k and converts its fault to a driver error.
func runKernel(k *vexec.Kernel, e *vexec.Env, o *op) *driver.Error {
	err := k.Run(e, o.grid, o.block, o.shared, o.args)
	if err == nil {
		return nil
	}
	f := &driver.Error{Call: "Launch", Code: driver.LaunchFailed, Detail: err.Error()}
	if v, ok := errors.AsType[*vexec.Fault](err); ok {
		f.Code, f.Kernel, f.Said, f.Origin = driver.Code(v.Code), v.Kernel, v.Said, o.origin
	}
	return f
}

// funcInfo returns k's use of resources.
func funcInfo(k *vexec.Kernel) (i driver.FuncInfo) {
	i.Registers, i.SharedBytes, i.LocalBytes, i.MaxThreads = k.Info()
	return i
}

// kernelClock is the clock that a kernel reads, in cycles. In virtual time each reading advances it by 1/64 of the time passed in this
// kernel, so that a spin of any length takes some hundred readings and overshoots by at most 4%.
type kernelClock struct {
	m      *machine
	base   int64
	passed atomic.Int64
}

// leastTick is the least that a reading advances the clock, in cycles.
const leastTick = 16

// read returns the clock.
func (c *kernelClock) read() int64 {
	if c.m.inline {
		return c.m.cycles(int64(time.Since(c.m.began)))
	}
	for {
		p := c.passed.Load()
		next := p + max(leastTick, p/64)
		if c.passed.CompareAndSwap(p, next) {
			return c.base + p
		}
	}
}

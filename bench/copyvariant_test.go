package bench

import (
	"fmt"
	"testing"
	"time"

	"tenon.dev"
	"tenon.dev/internal/driver"
)

func TestCopyVariants(t *testing.T) {
	x := onGPU(t).NoGrad()
	dev := coreExec(x).Device()
	x.Scope(func(x *tenon.Exec) {
		a, c := x.Full([]int{large}, 1.5, tenon.Float32), x.Empty([]int{large}, tenon.Float32)
		for name, f := range map[string]func(){
			"dtod":   func() { dev.Driver().CopyDtoD(driver.Ptr(c.DataPtr()), driver.Ptr(a.DataPtr()), 4*large, dev.DefaultStream().Handle) },
			"kernel": func() { x.NoGrad().MulInto(c, a, a) },
		} {
			best := 0.0
			for range 6 {
				x.Synchronize()
				s := time.Now()
				for range 5 {
					f()
				}
				x.Synchronize()
				best = max(best, 2*4*large*5/time.Since(s).Seconds()/1e12)
			}
			fmt.Printf("copy by %s: %.3f TB/s\n", name, best)
		}
	})
}

package agree

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"tenon.dev/internal/ptx"
	"testing"

	"tenon.dev/dtype"
	"tenon.dev/internal/driver"
	"tenon.dev/internal/kir"
)

// speeds are the products that BenchmarkProduct measures, by tile shape.
func speeds() []product {
	half := func(t kir.Type, bm, bn, bk, threads, stages int, ta, tb bool) product {
		return product{in: t, acc: dtype.Float32, out: t, bm: bm, bn: bn, bk: bk, threads: threads, stages: stages, loadVec: 8, outVec: 8,
			transA: ta, transB: tb, group: 8}
	}
	f32 := func(bm, bn, bk, threads, stages int, ta, tb, tf32 bool) product {
		return product{in: dtype.Float32, acc: dtype.Float32, out: dtype.Float32, bm: bm, bn: bn, bk: bk, threads: threads, stages: stages,
			loadVec: 4, outVec: 4, transA: ta, transB: tb, tf32: tf32, group: 8}
	}
	b := dtype.BFloat16
	return []product{
		half(b, 128, 128, 64, 128, 3, false, false),
		half(b, 128, 128, 64, 128, 3, false, true),
		half(b, 128, 128, 64, 128, 3, true, false),
		half(b, 128, 128, 32, 128, 4, false, true),
		half(b, 128, 128, 64, 256, 3, false, true),
		half(b, 128, 128, 64, 128, 4, false, true),
		half(b, 128, 128, 128, 128, 3, false, true),
		half(b, 256, 128, 64, 256, 4, false, true),
		half(b, 256, 128, 64, 256, 4, false, false),
		half(b, 128, 256, 64, 256, 4, false, false),
		half(b, 128, 128, 32, 128, 4, false, false),
		half(b, 128, 128, 32, 128, 5, false, false),
		half(b, 128, 128, 32, 256, 5, false, false),
		half(b, 64, 256, 64, 128, 4, false, true),
		half(b, 128, 256, 64, 256, 3, false, true),
		half(b, 128, 256, 64, 256, 4, false, true),
		half(b, 128, 256, 64, 256, 3, false, false),
		half(b, 128, 256, 32, 256, 4, false, true),
		half(b, 256, 128, 64, 256, 3, false, true),
		half(b, 256, 128, 64, 256, 3, false, false),
		half(dtype.Float16, 128, 256, 64, 256, 3, false, true),
		half(b, 64, 128, 64, 128, 4, false, true),
		f32(128, 128, 32, 128, 3, false, false, true),
		f32(128, 128, 32, 128, 3, false, true, true),
		f32(128, 256, 32, 256, 3, false, true, true),
		f32(128, 128, 16, 256, 3, false, false, false),
		f32(128, 128, 16, 256, 3, false, true, false),
		f32(128, 128, 16, 256, 3, true, false, false),
		f32(128, 128, 8, 256, 4, true, false, false),
		f32(128, 256, 16, 256, 3, true, false, false),
		f32(256, 128, 16, 256, 3, false, false, false),
		f32(128, 128, 32, 256, 3, false, false, false),
		f32(128, 256, 32, 256, 4, false, true, true),
		f32(128, 128, 16, 128, 4, false, false, true),
		f32(128, 64, 16, 128, 3, true, false, false),
		{in: dtype.Float64, acc: dtype.Float64, out: dtype.Float64, bm: 64, bn: 64, bk: 16, threads: 128, stages: 3, loadVec: 2,
			outVec: 2, group: 8},
		{in: dtype.Float64, acc: dtype.Float64, out: dtype.Float64, bm: 64, bn: 64, bk: 16, threads: 64, stages: 3, loadVec: 2,
			outVec: 2, group: 8},
		{in: dtype.Int8, acc: dtype.Int32, out: dtype.Int32, bm: 128, bn: 128, bk: 32, threads: 256, stages: 3, loadVec: 16, outVec: 4,
			transB: true, group: 8},
	}
}

// BenchmarkProduct measures square products of random numbers on the GPU; the event times exclude the launch.
func BenchmarkProduct(b *testing.B) {
	gpu := openGPU(b)
	const n = 8192
	th := gpu.Enter()
	defer th.Leave()
	size := uint64(n * n * 8)
	var bufs [3]driver.Ptr
	for i := range bufs {
		p, err := gpu.MemAlloc(th, size)
		if err != nil {
			b.Fatal(err)
		}
		defer gpu.MemFree(th, p)
		bufs[i] = p
	}
	last := kir.Type(0)
	for _, q := range speeds() {
		if q.in != last {
			last = q.in
			fillRandom(b, gpu, th, bufs[:2], q.in, int(size))
		}
		p, err := q.build()
		if err != nil {
			b.Fatal(err)
		}
		var own []byte
		for _, portable := range []bool{false, true} {
			gpu.portable = portable
			text, err := ptx.Compile([]*kir.Program{p}, gpu.target())
			if err != nil {
				b.Fatal(err)
			}
			if bytes.Equal(text, own) { // it uses no instruction specific to this device
				continue
			}
			own = text
			gpu.load(b, []*kir.Program{p})
			b.Run(q.name()+map[bool]string{true: "_portable"}[portable], func(b *testing.B) {
				th := gpu.Enter()
				defer th.Leave()
				ms := timeProduct(b, gpu, th, q, p, bufs, n)
				b.ReportMetric(2*n*n*n/ms/1e9, "TFLOP/s")
				info, err := gpu.FuncInfo(th, gpu.funcs[p.Name])
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(info.Registers), "registers")
				b.ReportMetric(float64(info.LocalBytes), "local-B")
			})
		}
	}
}

// fillRandom fills buffers with moderate random numbers of type t.
func fillRandom(b *testing.B, gpu *machine, th driver.Thread, bufs []driver.Ptr, t kir.Type, size int) {
	rng := rand.New(rand.NewPCG(1, 9))
	var block []byte
	for range 1 << 20 {
		x := rng.NormFloat64()
		switch t {
		case dtype.BFloat16:
			block = put(block, t, uint64(dtype.BF16FromFloat64(x)))
		case dtype.Float16:
			block = put(block, t, uint64(dtype.F16FromFloat64(x)))
		default:
			block = put(block, t, moderate(rng, t))
		}
	}
	for _, p := range bufs {
		for at := 0; at+len(block) <= size; at += len(block) {
			if err := gpu.CopyHtoD(p+driver.Ptr(at), block, gpu.stream); err != nil {
				b.Fatal(err)
			}
		}
	}
	if err := gpu.StreamSynchronize(th, gpu.stream); err != nil {
		b.Fatal(err)
	}
}

// timeProduct returns the milliseconds of one product, averaged over b.N runs after a warm-up.
func timeProduct(b *testing.B, gpu *machine, th driver.Thread, q product, p *kir.Program, bufs [3]driver.Ptr, n int) float64 {
	shared, err := gpu.dynamic(th, p, 0)
	if err != nil {
		b.Fatal(err)
	}
	offsets, size := p.ArgLayout()
	args := make([]byte, size)
	for i, v := range []uint64{uint64(bufs[0]), uint64(bufs[1]), uint64(bufs[2]), uint64(n), uint64(n), uint64(n)} {
		t := dtype.Uint64
		if i >= 3 {
			t = dtype.Int32
		}
		copy(args[offsets[i]:], put(nil, t, v))
	}
	grid := uint32((n + q.bm - 1) / q.bm * ((n + q.bn - 1) / q.bn))
	l := &driver.Launch{Func: gpu.funcs[p.Name], Stream: gpu.stream, Grid: [3]uint32{grid, 1, 1},
		Block: [3]uint32{uint32(q.threads), 1, 1}, Args: args, Shared: shared}
	var events [2]driver.Event
	for i := range events {
		if events[i], err = gpu.EventCreate(th, true); err != nil {
			b.Fatal(err)
		}
		defer gpu.EventDestroy(th, events[i])
	}
	check := func(err error) {
		if err != nil {
			b.Fatal(fmt.Errorf("%s: %w", p.Name, err))
		}
	}
	for range 2 {
		check(gpu.Launch(l))
	}
	check(gpu.EventRecord(events[0], gpu.stream))
	for range b.N {
		check(gpu.Launch(l))
	}
	check(gpu.EventRecord(events[1], gpu.stream))
	check(gpu.EventSynchronize(th, events[1]))
	ms, err := gpu.EventElapsed(th, events[0], events[1])
	check(err)
	return float64(ms) / float64(b.N)
}

package hostsim

import (
	"encoding/binary"
	"testing"

	"tenon.dev/internal/driver"
	"tenon.dev/internal/driver/drivertest"
)

// bench returns a device with one stream, and saxpy over n elements.
func bench(b *testing.B, d *Driver, n int) (*Device, driver.Thread, *driver.Launch) {
	dev, err := d.Device(0)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { dev.Close() })
	t := dev.Enter()
	b.Cleanup(t.Leave)
	m, err := dev.LoadModule(t, drivertest.KIR().Saxpy)
	if err != nil {
		b.Fatal(err)
	}
	f, err := dev.Function(t, m, "saxpy")
	if err != nil {
		b.Fatal(err)
	}
	p, err := dev.MemAlloc(t, uint64(8*n))
	if err != nil {
		b.Fatal(err)
	}
	s, err := dev.StreamCreate(t, true, 0)
	if err != nil {
		b.Fatal(err)
	}
	args := binary.LittleEndian.AppendUint64(nil, uint64(p))
	args = binary.LittleEndian.AppendUint64(args, uint64(p)+uint64(4*n))
	args = binary.LittleEndian.AppendUint32(args, 0)
	args = binary.LittleEndian.AppendUint32(args, uint32(n))
	return dev, t, &driver.Launch{Func: f, Stream: s, Grid: [3]uint32{uint32(n+255) / 256, 1, 1}, Block: [3]uint32{256, 1, 1}, Args: args}
}

// BenchmarkLaunchInline measures one small kernel on the CPU.
func BenchmarkLaunchInline(b *testing.B) {
	dev, _, l := bench(b, CPU(), 256)
	b.ReportAllocs()
	for b.Loop() {
		if err := dev.Launch(l); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkLaunchHeld measures only the queuing of a launch: its stream is held.
func BenchmarkLaunchHeld(b *testing.B) {
	dev, _, l := bench(b, New(Options{}), 256)
	release := dev.Hold(l.Stream)
	b.Cleanup(release)
	s := dev.streams.get(uintptr(l.Stream))
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if err := dev.Launch(l); err != nil {
			b.Fatal(err)
		}
		if i%queueLimit == queueLimit-1 {
			s.drop(dev.m)
		}
	}
	s.drop(dev.m)
}

// BenchmarkLaunch measures one small kernel, queued and run.
func BenchmarkLaunch(b *testing.B) {
	dev, t, l := bench(b, New(Options{}), 256)
	b.ReportAllocs()
	for b.Loop() {
		if err := dev.Launch(l); err != nil {
			b.Fatal(err)
		}
	}
	if err := dev.StreamSynchronize(t, l.Stream); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkRecordWait measures an event record and a wait for it on another stream, queued and run.
func BenchmarkRecordWait(b *testing.B) {
	dev, t, l := bench(b, New(Options{}), 256)
	e, err := dev.EventCreate(t, false)
	if err != nil {
		b.Fatal(err)
	}
	s, err := dev.StreamCreate(t, true, 0)
	if err != nil {
		b.Fatal(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := dev.EventRecord(e, l.Stream); err != nil {
			b.Fatal(err)
		}
		if err := dev.StreamWait(s, e); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkEnter measures Enter and Leave.
func BenchmarkEnter(b *testing.B) {
	dev, t, _ := bench(b, New(Options{}), 256)
	t.ID()
	for b.Loop() {
		dev.Enter().Leave()
	}
}

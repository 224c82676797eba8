package rt

import (
	"cmp"
	"runtime"
	"slices"

	"tenon.dev/internal/alloc"
)

// WatchLeaks makes tensors' memory go through a leak check and, below it, through guards, whether or not they are on, since Close also
// checks the zones of memory that is still live. It is called before the device has allocated anything.
func (d *Device) WatchLeaks() {
	if d.leaks != nil {
		return
	}
	g := d.guards.Load()
	if g == nil {
		g = d.newGuards()
	}
	d.leaks = alloc.NewLeaks(g)
	d.decorate(d.leaks)
}

// Left returns how many bytes tensors hold, and memory that was taken by address, when the garbage among them is freed, and the program's
// lines that allocated them, each once, as far as the memory history knows, and those that captured graphs which are open. The device is
// one of WatchLeaks. Unlike the statistics, it counts with caching off too, and under every back end.
func (d *Device) Left() (bytes uint64, lines, graphs []string, err error) {
	var live []alloc.BlockInfo
	for i := range 3 { // a collection frees unreachable tensors, the next one what these held
		if i > 0 {
			runtime.GC()
			waitCleanups()
		}
		if _, err := d.FreeLoose(); err != nil {
			return 0, nil, nil, err
		}
		if live = append(d.leaks.Live(), d.mem.RawLive()...); len(live) == 0 {
			return 0, nil, nil, nil
		}
	}
	slices.SortFunc(live, func(a, b alloc.BlockInfo) int { return cmp.Compare(a.Addr, b.Addr) })
	for _, b := range live {
		bytes += b.Size
		if line := allocatedAt(b.Context); line != "" && !slices.Contains(lines, line) {
			lines = append(lines, line)
		}
	}
	return bytes, lines, d.openGraphs.lines(), nil
}

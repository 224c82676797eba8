package alloc

import (
	"fmt"
	"strings"
)

// Summary returns the statistics as the table of torch.cuda.memory_summary; device is the number in its title. An abbreviated table leaves
// out the rows of the small and large pools.
func (s *Stats) Summary(device int, abbreviated bool) string {
	var b strings.Builder
	double, single := "|"+strings.Repeat("=", 75)+"|\n", "|"+strings.Repeat("-", 75)+"|\n"
	b.WriteString(double)
	fmt.Fprintf(&b, "|%17s PyTorch CUDA memory summary, device ID %-17d |\n", "", device)
	b.WriteString(single)
	fmt.Fprintf(&b, "| %11sCUDA OOMs: %-12d | %7scudaMalloc retries: %-9d |\n", "", s.OOMs, "", s.AllocRetries)
	b.WriteString(double)
	b.WriteString("|        Metric         | Cur Usage  | Peak Usage | Tot Alloc  | Tot Freed  |\n")
	for _, m := range s.summaryMetrics() {
		b.WriteString(single)
		summaryRow(&b, m.name, &m.stat[0], &m.stat[0], m.cell)
		if !abbreviated {
			summaryRow(&b, "      from large pool", &m.stat[1+largePool], &m.stat[0], m.cell)
			summaryRow(&b, "      from small pool", &m.stat[1+smallPool], &m.stat[0], m.cell)
		}
	}
	for _, m := range []struct {
		name string
		stat *Stat
	}{{"Oversize allocations", &s.OversizeAllocations}, {"Oversize GPU segments", &s.OversizeSegments}} {
		b.WriteString(single)
		summaryRow(&b, m.name, m.stat, m.stat, countCell)
	}
	b.WriteString(double)
	return b.String()
}

type summaryMetric struct {
	name string
	stat *StatArray
	cell func(n, scale int64) string
}

func (s *Stats) summaryMetrics() []summaryMetric {
	return []summaryMetric{
		{"Allocated memory", &s.AllocatedBytes, sizeCell},
		{"Active memory", &s.ActiveBytes, sizeCell},
		{"Requested memory", &s.RequestedBytes, sizeCell},
		{"GPU reserved memory", &s.ReservedBytes, sizeCell},
		{"Non-releasable memory", &s.InactiveSplitBytes, sizeCell},
		{"Allocations", &s.Allocation, countCell},
		{"Active allocs", &s.Active, countCell},
		{"GPU reserved segments", &s.Segment, countCell},
		{"Non-releasable allocs", &s.InactiveSplit, countCell},
	}
}

// summaryRow writes one row; the numbers of scale decide its units, so that the rows of one metric have the same.
func summaryRow(b *strings.Builder, name string, v, scale *Stat, cell func(n, scale int64) string) {
	fmt.Fprintf(b, "| %-21s |", name)
	for _, c := range [...][2]int64{{v.Current, scale.Current}, {v.Peak, scale.Peak}, {v.Allocated, scale.Allocated},
		{v.Freed, scale.Freed}} {
		fmt.Fprintf(b, " %s |", cell(c[0], c[1]))
	}
	b.WriteByte('\n')
}

// sizeCell writes n bytes in the largest unit in which scale has at least 768 of the unit below (PyTorch's rule).
func sizeCell(n, scale int64) string {
	units := [...]string{"B  ", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for ; i < len(units)-1 && scale >= 768*1024; i++ {
		n /= 1024
		scale /= 1024
	}
	return fmt.Sprintf("%6d %s", n, units[i])
}

// countCell writes the count n, in thousands or millions once scale has at least 750 of them.
func countCell(n, scale int64) string {
	units := [...]string{" ", "K", "M"}
	i := 0
	for ; i < len(units)-1 && scale >= 750*1000; i++ {
		n /= 1000
		scale /= 1000
	}
	return fmt.Sprintf("%7d %s ", n, units[i])
}

package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// bar is a line that shows how far the work is. It shows only on a terminal.
type bar struct {
	out         io.Writer
	title       string
	done, total int
}

const barWidth = 30

func newBar(out io.Writer, title string, total int) *bar {
	b := &bar{title: title, total: total}
	if f, ok := out.(*os.File); ok {
		if info, err := f.Stat(); err == nil && info.Mode()&os.ModeCharDevice != 0 {
			b.out = out
		}
	}
	b.draw()
	return b
}

// advance shows that one more step is done.
func (b *bar) advance() {
	b.done++
	b.draw()
}

func (b *bar) draw() {
	if b.out == nil {
		return
	}
	full := barWidth * b.done / b.total
	// A narrow terminal cuts the line off: while it is written, lines do not wrap.
	fmt.Fprintf(b.out, "\r\x1b[?7l%s %d/%d [%s%s]\x1b[?7h", b.title, b.done, b.total, strings.Repeat("█", full),
		strings.Repeat("·", barWidth-full))
}

// clear takes the line away.
func (b *bar) clear() {
	if b.out != nil {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
}

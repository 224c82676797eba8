package main

import (
	"fmt"
	"io"
	"os"
	"strings"
)

// bar is a progress bar. It shows only on a terminal.
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

// advance counts one more step and redraws the bar.
func (b *bar) advance() {
	b.done++
	b.draw()
}

func (b *bar) draw() {
	if b.out == nil {
		return
	}
	full := barWidth * b.done / b.total
	// Line wrapping is off while the bar is written, so that a narrow terminal cuts it off.
	fmt.Fprintf(b.out, "\r\x1b[?7l%s %d/%d [%s%s]\x1b[?7h", b.title, b.done, b.total, strings.Repeat("█", full),
		strings.Repeat("·", barWidth-full))
}

// clear erases the line.
func (b *bar) clear() {
	if b.out != nil {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
}

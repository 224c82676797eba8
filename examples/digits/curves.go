package main

import (
	"fmt"
	"slices"
	"strings"
)

// panel is one curve with its axes.
type panel struct {
	title, color string
	values       []float64
	low, high    float64
	format       string // of the numbers on the axis
}

const (
	panelWidth, panelHeight = 420, 240
	margin                  = 48
)

// curves returns an SVG picture of loss and accuracy by epoch.
func curves(losses, accuracies []float64) []byte {
	percent := make([]float64, len(accuracies))
	for i, a := range accuracies {
		percent[i] = 100 * a
	}
	panels := []panel{
		{"training loss", "#b3412f", losses, 0, max(slices.Max(losses), 1e-9), "%.2f"},
		{"test accuracy, %", "#2f6fb3", percent, 0, 100, "%.0f"},
	}
	width, height := len(panels)*(panelWidth+2*margin), panelHeight+2*margin
	var b strings.Builder
	fmt.Fprintf(&b,
		`<svg xmlns="http://www.w3.org/2000/svg" width="%d" height="%d" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n",
		width, height, width, height)
	fmt.Fprintf(&b, `<rect width="%d" height="%d" fill="white"/>`+"\n", width, height)
	for i, p := range panels {
		p.draw(&b, i*(panelWidth+2*margin)+margin, margin)
	}
	b.WriteString("</svg>\n")
	return []byte(b.String())
}

// draw draws the panel with its upper left corner at x, y.
func (p panel) draw(b *strings.Builder, x, y int) {
	const lines = 5
	fmt.Fprintf(b, `<text x="%d" y="%d" font-size="14">%s</text>`+"\n", x, y-16, p.title)
	for i := range lines + 1 {
		part := float64(i) / lines
		at := float64(y+panelHeight) - part*panelHeight
		fmt.Fprintf(b, `<line x1="%d" y1="%.1f" x2="%d" y2="%.1f" stroke="#ddd"/>`, x, at, x+panelWidth, at)
		fmt.Fprintf(b, `<text x="%d" y="%.1f" text-anchor="end">`+p.format+"</text>\n", x-6, at+4, p.low+part*(p.high-p.low))
	}
	n := len(p.values)
	place := func(i int) float64 { return float64(x) + panelWidth*(float64(i)+0.5)/float64(n) }
	for i := 0; i < n; i += 1 + n/10 {
		fmt.Fprintf(b, `<text x="%.1f" y="%d" text-anchor="middle">%d</text>`+"\n", place(i), y+panelHeight+18, i+1)
	}
	fmt.Fprintf(b, `<text x="%d" y="%d" text-anchor="middle">epoch</text>`+"\n", x+panelWidth/2, y+panelHeight+36)
	var points []string
	for i, v := range p.values {
		at := float64(y+panelHeight) - panelHeight*(v-p.low)/(p.high-p.low)
		points = append(points, fmt.Sprintf("%.1f,%.1f", place(i), at))
		fmt.Fprintf(b, `<circle cx="%.1f" cy="%.1f" r="2.5" fill="%s"/>`+"\n", place(i), at, p.color)
	}
	fmt.Fprintf(b, `<polyline points="%s" fill="none" stroke="%s" stroke-width="2"/>`+"\n", strings.Join(points, " "), p.color)
}

package core

import (
	"math"
	"strconv"
	"strings"
)

// Decimal formats a number as PyTorch prints it.
func Decimal(v float64) string {
	a := math.Abs(v)
	s := strconv.FormatFloat(v, 'g', -1, 64)
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return strings.ToLower(strings.TrimPrefix(s, "+"))
	case a != 0 && a < 1e16 && a >= 1e-4:
		s = strconv.FormatFloat(v, 'f', -1, 64)
	}
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// Truth formats a bool as PyTorch prints it.
func Truth(v bool) string {
	if v {
		return "True"
	}
	return "False"
}

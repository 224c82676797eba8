package core

import (
	"strings"
	"unicode"

	"tenon.dev/internal/rt"
)

func init() { rt.SetOpNameOf(opNameOf) }

// opNameOf returns PyTorch's name of the operation that a function is, such as "log_softmax", or "" if it is none: operations are the
// methods of Exec.
func opNameOf(function string) string {
	method, ok := strings.CutPrefix(function, "tenon.dev/internal/core.(*Exec).")
	if !ok || method == "" || !unicode.IsUpper(rune(method[0])) || strings.Contains(method, ".") {
		return ""
	}
	method = strings.TrimSuffix(method, "Into")
	r := rows[method]
	for _, variant := range []string{"S", "C"} { // with a scalar, and with a complex one
		base, ok := strings.CutSuffix(method, variant)
		if r == nil && ok && rows[base] != nil {
			r = rows[base]
		}
	}
	if r != nil && r.Torch != "" {
		return r.Torch[strings.LastIndexByte(r.Torch, '.')+1:]
	}
	// A composite has no row; its name follows PyTorch's spelling.
	var b strings.Builder
	for i, c := range method {
		if unicode.IsUpper(c) {
			if i > 0 && i+1 < len(method) && unicode.IsLower(rune(method[i+1])) {
				b.WriteByte('_')
			}
			c = unicode.ToLower(c)
		}
		b.WriteRune(c)
	}
	return b.String()
}

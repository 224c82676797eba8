package agree

import (
	"fmt"
	"os"
	"testing"

	"tenon.dev/internal/kir"
	"tenon.dev/internal/ptx"
)

func TestDump(t *testing.T) {
	seen := map[string]bool{}
	for _, q := range append(products(), speeds()...) {
		if seen[q.name()] {
			continue
		}
		seen[q.name()] = true
		p, err := q.build()
		if err != nil {
			t.Fatal(err)
		}
		text, err := ptx.Compile([]*kir.Program{p}, ptx.Target{Major: 9, Arch: true})
		if err != nil {
			t.Fatal(err)
		}
		os.WriteFile(fmt.Sprintf("/tmp/dump/%s.ptx", q.name()), text, 0o666)
	}
}

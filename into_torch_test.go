package tenon_test

import (
	"os"
	"reflect"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/internal/core"
)

// Every operation that has out= in PyTorch has a form with Into, if Tenon has it. testdata/torch_out.txt lists them.
func TestTorchOut(t *testing.T) {
	text, err := os.ReadFile("testdata/torch_out.txt")
	if err != nil {
		t.Fatal(err)
	}
	ours := map[string]string{}
	for _, o := range core.Ops() {
		if o.Torch != "" {
			ours[o.Torch] = o.Name
		}
	}
	exec, seen, before := reflect.TypeFor[*tenon.Exec](), 0, ""
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "#") {
			continue
		}
		name, form, _ := strings.Cut(line, " ")
		if seen++; name <= before {
			t.Errorf("%s is not in order", name)
		}
		before = name
		switch {
		case form == "nothing":
		case form == "-":
			if own, has := ours[name]; has {
				t.Errorf("%s is %s, which needs a form with Into", name, own)
			}
			if m, has := exec.MethodByName(camel(name)); has {
				t.Errorf("%s may be %s, which needs a form with Into", name, m.Name)
			}
		case strings.HasPrefix(form, "linalg."):
			if functions[form] == nil {
				t.Errorf("%s has no %s", name, form)
			}
		default:
			if _, has := exec.MethodByName(form); !has {
				t.Errorf("%s has no %s", name, form)
			}
		}
	}
	if seen < 200 {
		t.Errorf("the list has %d functions", seen)
	}
}

// camel returns a name of PyTorch as a method of ours would be called.
func camel(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name[strings.LastIndexByte(name, '.')+1:], "_") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

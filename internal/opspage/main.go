// Command opspage writes docs/ops.md from the rows of all operations. It reads the rows and runs no operation.
package main

//go:generate go run . ../../docs/ops.md

import (
	"fmt"
	"log"
	"os"
	"strings"

	"tenon.dev/internal/core"
	_ "tenon.dev/linalg" // its operations
	_ "tenon.dev/sparse"
)

func main() {
	log.SetFlags(0)
	log.SetPrefix("opspage: ")
	if len(os.Args) != 2 {
		log.Fatal("usage: opspage PAGE")
	}
	if err := os.WriteFile(os.Args[1], []byte(page(core.Ops())), 0o644); err != nil {
		log.Fatal(err)
	}
}

const legend = `# Operations

What goes through the [funnel](architecture.md#the-funnel): every operation, by the name that errors, traces and calls have. The page is
generated from the rows by ` + "`go generate ./...`" + `, and tests hold the rows to what the operations really do. A method of an Exec
is one of them or made of several.

- **Operands**: with ? one that may be absent, with # one in whose place there may be a number, with … a list.
- **Outputs**: with ? one that may be absent, with … a list. All but views can go to destinations that the caller gives.
- **Values** are numbers of which any will do: the same kernels run, and a call that differs in them alone has the same shapes. A number
  in place of an operand is a value too.
- **Structure** is what decides types, shapes and kernels besides the operands' types, shapes and strides: a list has …, dtype is a type
  that was asked for and options are attributes of the operation's own.
- **Properties**: *view*: the outputs are views of the first operand, and no kernel runs. *into*: the outputs are destinations, always,
  which the call changes. *changes*: what it changes besides destinations. *draws*: it takes numbers from a generator. *waits*: it waits
  for the device, or may, and cannot be captured. *varies*: where several elements go to one place, which of them wins may differ from
  run to run. *other devices*: operands may lie there. *user*: what it does is the program's own. *sized*: the size of its output depends on
  data. *asserts*: its kernels have assertions, which may stop the device. Without these words an operation gives new outputs, changes and
  draws nothing, waits for nothing, can be captured, checks no data and gives the same bits each time.
- **Autocast**: to what type it brings the operands: *low precision* is the type that Autocast was given, *float32*, *widest* is float32
  where one operand has it and else low precision, and *result in float32* leaves operands and makes the result float32.
- **Derivative**: whether it has one.

An output's form follows from the operands' forms and the structure, always. Methods for which it depends on data, such as Nonzero and
BinCount, read the device first, and put what they read into the structure; so they wait, and cannot be captured. Operations that only such
methods call are *sized*, and have a number that was read in their structure.

| Operation | PyTorch | Operands | Outputs | Values | Structure | Properties | Autocast | Derivative |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
`

// page returns the text of the page.
func page(ops []core.OpInfo) string {
	var b strings.Builder
	b.WriteString(legend)
	for _, o := range ops {
		name := o.Name
		if o.Package != "internal/core" {
			name = fmt.Sprintf("%s (%s)", name, o.Package)
		}
		derivative, cast := "", ""
		if o.Derivative {
			derivative = "yes"
		}
		if o.Cast != core.CastNone {
			cast = o.Cast.String()
		}
		cells := []string{name, code(o.Torch), list(o.Operands), list(o.Outputs), list(o.Values), list(o.Structure),
			list(properties(o)), cast,
			derivative}
		fmt.Fprintf(&b, "| %s |\n", strings.Join(cells, " | "))
	}
	return strings.ReplaceAll(b.String(), "|  ", "| ")
}

// properties are the words of the page for what o does besides making new outputs.
func properties(o core.OpInfo) (words []string) {
	add := func(has bool, word string) {
		if has {
			words = append(words, word)
		}
	}
	add(o.Aliases, "view")
	add(o.Into, "into")
	add(len(o.Changed) > 0, "changes "+strings.Join(o.Changed, " and "))
	add(o.Draws, "draws")
	add(o.Waits, "waits")
	add(o.Varies, "varies")
	add(o.Foreign, "other devices")
	add(o.User, "user")
	add(o.Sized, "sized")
	add(o.Asserts, "asserts")
	return words
}

func list(words []string) string { return strings.Join(words, ", ") }

func code(s string) string {
	if s == "" {
		return ""
	}
	return "`" + s + "`"
}

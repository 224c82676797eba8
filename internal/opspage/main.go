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
	text, err := page(core.Ops(), "../core", "../..")
	if err != nil {
		log.Fatal(err)
	}
	if err := os.WriteFile(os.Args[1], []byte(text), 0o644); err != nil {
		log.Fatal(err)
	}
}

const top = `# Operations

The methods of an Exec by task, then a table of the operations that they are made of. Both are generated from the code by
` + "`go generate ./...`" + `.

## Methods by task

Each method takes the arguments in parentheses, and … stands for any number of them; ` + "`opt`" + ` may be left out. ` +
	"`go doc tenon.dev Exec.NAME`" + ` has
types, options and errors, and [from-pytorch.md](from-pytorch.md) PyTorch's names. Most methods also have a form that writes to a tensor of
the program: its name ends in Into, and it takes that tensor first.

`

const legend = `## The operations

Every operation that passes the [funnel](architecture.md#the-funnel), by the name that it has in errors, traces and calls. Tests
check that the rows say what the operations really do. A method of an Exec is one operation or is composed of several.

- **Operands**: ? marks an optional one, # one that may be a number instead, … a list.
- **Outputs**: ? marks an optional one, … a list. All except views can be written to destinations that the caller gives.
- **Values** are numbers that may change freely: calls that differ only in values have the same shapes and run the same kernels. A number
  in place of an operand is a value too.
- **Structure** is what decides types, shapes and kernels in addition to the operands' types, shapes and strides: … marks a list, dtype is
  a requested type, and options are attributes of the operation's own type.
- **Properties**: *view*: the outputs are views of the first operand, and no kernel runs. *into*: the outputs are always destinations, which
  the call changes. *changes*: what it changes besides destinations. *draws*: it draws random numbers from a generator. *waits*: it waits,
  or may wait, for the device, and cannot be captured. *varies*: if several elements are written to one place, the one that wins may differ
  from run to run. *other devices*: operands may be on other devices. *user*: the program defines what it does. *sized*: the size of its
  output depends on data. *asserts*: its kernels have assertions, which may fail. Without these words, an operation returns new
  outputs, changes and draws nothing, waits for nothing, can be captured, checks no data and gives the same bits each time.
- **Autocast**: the type to which operands are cast. *low precision* is the type given to Autocast; *widest* is float32 if one operand has
  it, and otherwise low precision; *result in float32* leaves the operands as they are and makes the result float32.
- **Derivative**: whether it has one.

An output's form always follows from the operands' forms and the structure. Methods whose output size depends on data, such as Nonzero and
BinCount, read the device first and put the number into the structure; so they wait, and cannot be captured. Operations that only such
methods call are *sized*, and have such a number in their structure.

| Operation | PyTorch | Operands | Outputs | Values | Structure | Properties | Autocast | Derivative |
| --- | --- | --- | --- | --- | --- | --- | --- | --- |
`

// page returns the text of the page about ops and the methods of Exec in the folders of core and of the root package.
func page(ops []core.OpInfo, folder, root string) (string, error) {
	byTask, err := methods(folder, root)
	if err != nil {
		return "", err
	}
	return top + byTask + table(ops), nil
}

// table returns the table of the rows.
func table(ops []core.OpInfo) string {
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

package torchfile_test

import (
	"fmt"
	"log"
	"os"
	"path/filepath"

	"tenon.dev"
	"tenon.dev/nn"
	"tenon.dev/torchfile"
)

// A module's parameters are saved to a file that torch.load can read, and loaded again.
func Example() {
	x, err := tenon.Open(tenon.CPU())
	if err != nil {
		log.Fatal(err)
	}
	defer x.Close()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "checkpoint.pt")
	line := nn.NewLinear(x, 3, 2)
	defer nn.Close(line)
	if err := torchfile.Save(x, name, map[string]any{"epoch": 3, "model": torchfile.Tensors(nn.StateDict(line))}); err != nil {
		log.Fatal(err)
	}

	file, err := torchfile.Open(name)
	if err != nil {
		log.Fatal(err)
	}
	defer file.Close()
	root := file.Root().(*torchfile.Dict)
	for i, key := range root.Keys {
		if d, ok := root.Values[i].(*torchfile.Dict); ok {
			fmt.Println(key, d.Keys, d.Values)
		} else {
			fmt.Println(key, root.Values[i])
		}
	}
	x.Scope(func(x *tenon.Exec) {
		state, err := file.StateDict(x, "model")
		if err != nil {
			log.Fatal(err)
		}
		if err := nn.Load(x, line, state); err != nil {
			log.Fatal(err)
		}
	})
	// Output:
	// epoch 3
	// model [weight bias] [float32[2 3] float32[2]]
}

package optim

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"

	"tenon.dev/torchfile"
)

// only returns the value of a dict's key, which must not occur twice.
func only(d *torchfile.Dict, key string) (v any, found bool, err error) {
	for i, k := range d.Keys {
		if s, ok := k.(string); ok && s == key {
			if found {
				return nil, false, twice(key)
			}
			v, found = d.Values[i], true
		}
	}
	return v, found, nil
}

func twice(key string) error {
	return fmt.Errorf("the key %q is there twice; a state dict has each key once", key)
}

// keysOnce returns an error if an object in a JSON text has a key twice, since encoding/json would take the last. Keys that differ only
// in case count as the same, since encoding/json matches the fields of a struct in either case.
func keysOnce(text string) error {
	type object struct {
		keys  map[string]bool // nil for a list
		value bool            // the next token is a key's value
	}
	var open []object
	for tokens := json.NewDecoder(strings.NewReader(text)); ; {
		token, err := tokens.Token()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		var in *object
		if len(open) > 0 {
			in = &open[len(open)-1]
		}
		if key, ok := token.(string); ok && in != nil && in.keys != nil && !in.value {
			lower := strings.ToLower(key)
			if in.keys[lower] {
				return twice(key)
			}
			in.keys[lower], in.value = true, true
			continue
		}
		if in != nil {
			in.value = false
		}
		switch token {
		case json.Delim('{'):
			open = append(open, object{keys: map[string]bool{}})
		case json.Delim('['):
			open = append(open, object{})
		case json.Delim('}'), json.Delim(']'):
			open = open[:len(open)-1]
		}
	}
}

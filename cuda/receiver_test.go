package cuda_test

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"regexp"
	"slices"
	"testing"

	"tenon.dev/cuda"
	"tenon.dev/fault"
)

// receivers are the package's types with pointer methods, and the error that a nil or a zero value gives. A zero Generator is valid.
var receivers = map[string]struct {
	nothing any
	zero    any
	want    string
}{
	"Device": {(*cuda.Device)(nil), new(cuda.Device), "the device is nil or a zero value; use one that an Exec's Device returned"},
	"Stream": {(*cuda.Stream)(nil), new(cuda.Stream), "the stream is nil or a zero value; use one that the device's Stream or " +
		"DefaultStream returned"},
	"Event": {(*cuda.Event)(nil), new(cuda.Event),
		"the event is nil or a zero value; use one that the device's NewEvent returned"},
	"Generator": {(*cuda.Generator)(nil), nil, "the generator is nil; use one that NewGenerator or a device's Generator returned"},
	"MemPool":   {(*cuda.MemPool)(nil), new(cuda.MemPool), "the pool is nil or a zero value; use one that NewMemPool returned"},
	"PoolCheckpoint": {(*cuda.PoolCheckpoint)(nil), new(cuda.PoolCheckpoint), "the checkpoint is nil or a zero value; use one that " +
		"CheckpointPool returned"},
	"Profiler": {(*cuda.Profiler)(nil), new(cuda.Profiler), "the profiler is nil or a zero value; use one that Device.Profile returned"},
	"Snapshot": {(*cuda.Snapshot)(nil), new(cuda.Snapshot), "the snapshot is nil or a zero value; use one that Device.Snapshot or " +
		"ReadSnapshot returned"},
}

// TestReceivers: a method of a nil or a zero value returns an error that says so, whatever the arguments; a method without an error result
// panics with that error, which names the method and the caller's line, except String, which returns the text.
func TestReceivers(t *testing.T) {
	record, err := os.ReadFile("../api/tenon.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`pkg tenon.dev/cuda, method \(\*(\w+)\)`).FindAllStringSubmatch(string(record), -1) {
		if receivers[m[1]].nothing == nil {
			t.Errorf("nothing is said of a nil %s", m[1])
		}
	}
	for name, r := range receivers {
		for _, of := range []any{r.nothing, r.zero} {
			if of == nil {
				continue
			}
			v := reflect.ValueOf(of)
			for i := range v.NumMethod() {
				method, f := v.Type().Method(i).Name, v.Method(i)
				if method == "String" {
					if got := fmt.Sprint(f.Call(nil)[0]); got != "cuda."+name+"("+r.want+")" {
						t.Errorf("%s.String of %v gives %q", name, of, got)
					}
					continue
				}
				n := f.Type().NumIn()
				if f.Type().IsVariadic() {
					n--
				}
				args := make([]reflect.Value, n)
				for k := range args {
					args[k] = reflect.Zero(f.Type().In(k))
				}
				returns := slices.ContainsFunc(slices.Collect(f.Type().Outs()), func(o reflect.Type) bool {
					return o == reflect.TypeFor[error]()
				})
				err, panicked := outcome(f, args)
				var e *fault.Error
				switch {
				case !errors.As(err, &e):
					t.Errorf("%s.%s of %v: %v", name, method, of, err)
				case e.Kind != fault.Invalid || e.Msg != r.want:
					t.Errorf("%s.%s of %v says %q, want %q", name, method, of, e.Msg, r.want)
				case panicked == returns:
					t.Errorf("%s.%s of %v: panics %v", name, method, of, panicked)
				case panicked && (e.Op != method || e.Line == 0):
					t.Errorf("%s.%s of %v is said to be %s at %s:%d", name, method, of, e.Op, e.File, e.Line)
				}
			}
		}
	}
}

// outcome calls f and returns its error, or the value that it panicked with.
func outcome(f reflect.Value, args []reflect.Value) (err error, panicked bool) {
	defer func() {
		if r := recover(); r != nil {
			panicked = true
			err, _ = r.(error)
		}
	}()
	for _, o := range f.Call(args) {
		if e, ok := o.Interface().(error); ok {
			err = e
		}
	}
	return err, false
}

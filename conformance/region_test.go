package conformance

import (
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
	"tenon.dev/internal/recorded"
	"tenon.dev/internal/testdevice"
)

// TestOpsInRegion runs PyTorch's recorded calls, with their backward passes, by themselves, three times in a region and three times as a
// callable: results and gradients have the same bits, and the third run is a replay. It does so on the simulator and, if -device says so,
// on a GPU.
func TestOpsInRegion(t *testing.T) {
	old := slog.Default()
	slog.SetDefault(slog.New(slog.DiscardHandler)) // every case of some operations warns
	t.Cleanup(func() { slog.SetDefault(old) })
	t.Run("sim", func(t *testing.T) { opsInRegion(t, testdevice.Open(t, tenon.Sim(0))) })
	if onGPU() {
		t.Run("cuda", func(t *testing.T) { opsInRegion(t, testdevice.Open(t, tenon.CUDA(0))) })
	}
}

func opsInRegion(t *testing.T, x *tenon.Exec) {
	cases, err := recorded.OpenCases(*opsFlag)
	must(t, err)
	match, err := regexp.Compile(*matchFlag)
	must(t, err)
	r := &regionRunner{}
	for c, err := range cases.All() {
		must(t, err)
		if offered(c) == nil || !match.MatchString(c.Op) {
			continue
		}
		if err := r.run(x, c); err != nil {
			t.Errorf("%s: %v", c.Name(), err)
			if r.failed++; r.failed == 20 {
				t.Fatal("further failures are not shown")
			}
		}
		if r.cases++; r.cases%100 == 0 { // else the recordings of all cases would be kept
			must(t, compile.Reset(x))
		}
	}
	t.Logf("%d cases; %d last runs were replays, %d of them fourth ones", r.cases, r.replays, r.fourth)
	if r.fourth*100 > r.replays {
		t.Error("too many cases were recorded twice")
	}
}

// unset are the operations whose results have elements that nothing sets.
var unset = []string{"empty_like"}

// notReplayed are the operations of which no third run need be a replay, by why: all of it is not one graph, or there is none.
var notReplayed = map[string]string{
	"empty_like":    "it has no work",
	"argwhere":      "the size of the result is read from the device",
	"masked_select": "the size of the result is read from the device",
	"nonzero":       "the size of the result is read from the device",
	"unique":        "the size of the result is read from the device",
	"equal":         "the result is read from the device",
}

// changesArgument reports whether a case changes one of its arguments, which a callable does without a graph.
func changesArgument(c *recorded.Case) bool {
	training, _ := c.Kwargs["training"].(bool)
	return c.Op == "nn.functional.batch_norm" && training || c.Op == "nn.functional.embedding" && c.Kwargs["max_norm"] != nil
}

// regionRunner runs cases in regions. replays counts the last runs that were replays, and fourth those of them that were not the third.
type regionRunner struct{ cases, failed, replays, fourth int }

// run runs a case in all ways.
func (r *regionRunner) run(x *tenon.Exec, c *recorded.Case) error {
	want, _, err := runWay(x, c, func(x *tenon.Exec, u *opUse) error {
		u.call(x)
		return u.pass(x)
	})
	if err != nil {
		return err
	}
	region := compile.New()
	err = r.repeat(x, c, want, region, func(x *tenon.Exec, u *opUse) error {
		return region.Do(x, func(x *tenon.Exec) error {
			u.call(x)
			for _, y := range tensorsOf(u.res) {
				x.Keep(y)
			}
			return u.pass(x)
		})
	})
	if err != nil {
		return fmt.Errorf("in Do: %w", err)
	}
	var u *opUse
	callable := compile.Func(func(x *tenon.Exec, in []*tenon.Tensor) []*tenon.Tensor {
		u.call(x)
		return tensorsOf(u.res)
	})
	if changesArgument(c) {
		return nil
	}
	err = r.repeat(x, c, want, callable.Region, func(x *tenon.Exec, now *opUse) error {
		u = now
		callable.Call(x, u.a.all())
		return u.pass(x)
	})
	if err != nil {
		return fmt.Errorf("through Func: %w", err)
	}
	return nil
}

// repeat runs a case three times by way, with region. Where an input that had stayed in place moves before the third run, that one is
// recorded again, and there is a fourth.
func (r *regionRunner) repeat(x *tenon.Exec, c *recorded.Case, want string, region *compile.Region, way way) error {
	replayed := false
	for i := 0; i < 3 || i == 3 && !replayed; i++ {
		before := region.Stats(x)
		got, aliases, err := runWay(x, c, way)
		switch {
		case err != nil:
			return fmt.Errorf("run %d: %w", i+1, err)
		case got != want:
			return fmt.Errorf("run %d gives %s; want %s", i+1, got, want)
		}
		s := region.Stats(x)
		if notReplayed[c.Op] != "" || aliases && s.Deferred == 0 {
			replayed = i == 2 // there is nothing to replay
			continue
		}
		replayed = s.Replays > before.Replays && s.Recordings == before.Recordings && s.WarmUps == before.WarmUps &&
			s.Plain == before.Plain && s.Eager == before.Eager
		switch {
		case i == 3 && !replayed:
			return fmt.Errorf("neither the third nor the fourth run was a replay: %+v, after %+v", s, before)
		case i == 3:
			r.fourth++
		}
		if i >= 2 && replayed {
			r.replays++
		}
	}
	return nil
}

// way is a way to use an operation.
type way func(x *tenon.Exec, u *opUse) error

// opUse is one use of a case's operation.
type opUse struct {
	f     func(x *tenon.Exec, a *args) any
	a     *args
	grads []*tenon.Tensor
	res   any
}

func (u *opUse) call(x *tenon.Exec)       { u.res = u.f(x, u.a) }
func (u *opUse) pass(x *tenon.Exec) error { return backward(x, u.res, u.grads) }

// aliases reports whether all results are arguments or views of them.
func (u *opUse) aliases() bool {
	for _, y := range tensorsOf(u.res) {
		if !slices.ContainsFunc(u.a.all(), y.SharesStorage) {
			return false
		}
	}
	return true
}

// all lists the tensors among the arguments.
func (a *args) all() (ts []*tenon.Tensor) {
	var add func(v any)
	add = func(v any) {
		switch v := v.(type) {
		case *tenon.Tensor:
			ts = append(ts, v)
		case []any:
			for i := range v {
				add(v[i])
			}
		}
	}
	add(a.at)
	for _, k := range slices.Sorted(maps.Keys(a.kw)) {
		add(a.kw[k])
	}
	return ts
}

// runWay loads the case's tensors, uses the operation with a fresh generator, and returns the bits of results and gradients, and whether
// all results are arguments or views of them.
func runWay(x *tenon.Exec, c *recorded.Case, way way) (bits string, aliases bool, err error) {
	defer recovered(&err)
	x.Scope(func(x *tenon.Exec) {
		_ = x.Generator().SetSeed(1) // no graph is under way
		u := &opUse{f: offered(c), a: newArgs(x, c), grads: loadAll(x, c.GradOut)}
		if err = way(x, u); err != nil {
			return
		}
		aliases = u.aliases()
		var out recorded.Outcome
		out, err = u.a.outcome(x, u.res)
		bits = bitsOf(c, out)
	})
	return bits, aliases, err
}

// bitsOf spells results and gradients, so that equal texts mean equal bits.
func bitsOf(c *recorded.Case, out recorded.Outcome) string {
	var text strings.Builder
	var spell func(v recorded.Value)
	spell = func(v recorded.Value) {
		switch v := v.(type) {
		case *recorded.Tensor:
			if v == nil {
				text.WriteString("none ")
				return
			}
			fmt.Fprint(&text, v.DType, v.Shape, v.Strides, " ")
			if !slices.Contains(unset, c.Op) {
				fmt.Fprintf(&text, "%x ", v.Data)
			}
		case recorded.List:
			for i := range v {
				spell(v[i])
			}
		default:
			fmt.Fprintf(&text, "%T %v ", v, v)
		}
	}
	spell(out.Out)
	for _, g := range out.Grads {
		text.WriteString("gradient ")
		spell(g)
	}
	return text.String()
}

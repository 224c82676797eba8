package conformance

import (
	"testing"

	"tenon.dev"
	"tenon.dev/compile"
)

var _ = registerTrees(
	treeTest{name: "TREE-052_test_manager_per_device", run: testTreePerDevice},
)

// testTreePerDevice: one session has separate recordings on each device.
func testTreePerDevice(t *testing.T, x *tenon.Exec, o compile.Opt) {
	other := secondDevice(t)
	f := compile.Func(cubeOf, o)
	y := x.On(other.Stream())
	y.Scope(func(y *tenon.Exec) {
		in := y.Full([]int{4}, 3, tenon.Float32)
		for range 3 {
			out := f.Call(y, in)
			allAre(t, y, "the result", out, 27)
			out.Close()
		}
	})
	check(t, "recordings of the first device are kept", hasTrees(x), false)
	check(t, "recordings of the second device are kept", hasTrees(y), true)
	check(t, "recordings", treesOf(t, y).Graphs, 1)
	check(t, "private segments of the first device", privateSegments(t, x), 0)
	must(t, compile.Reset(y))
	check(t, "recordings of the second device are kept after the reset", hasTrees(y), false)
	check(t, "private segments of the second device", privateSegments(t, y), 0)
}

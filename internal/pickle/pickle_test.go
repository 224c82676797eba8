package pickle_test

import (
	"bytes"
	"fmt"
	"io"
	"math"
	"math/big"
	"os"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"

	"tenon.dev/fault"
	"tenon.dev/internal/pickle"
)

// show returns a value in Python's notation; deep nesting is cut off.
func show(d *pickle.Data, r pickle.Ref, depth int) string {
	list := func(open, end string, step int) string {
		if depth == 0 {
			return open + "…" + end
		}
		var parts []string
		items := d.Items(r)
		for i := 0; i < len(items); i += step {
			s := show(d, items[i], depth-1)
			if step == 2 {
				s += ": " + show(d, items[i+1], depth-1)
			}
			parts = append(parts, s)
		}
		return open + strings.Join(parts, ", ") + end
	}
	part := func(p pickle.Ref) string { // a state may be its own object
		switch k := p.Kind(); {
		case k != pickle.KindObject && k != pickle.KindPersistent:
			return show(d, p, depth)
		case depth == 0:
			return "…"
		}
		return show(d, p, depth-1)
	}
	switch r.Kind() {
	case pickle.KindBool:
		b, _ := d.Bool(r)
		return fmt.Sprint(b)
	case pickle.KindInt:
		b, _ := d.Big(r)
		return b.String()
	case pickle.KindFloat:
		f, _ := d.Float(r)
		return fmt.Sprintf("%gf", f)
	case pickle.KindString:
		s, _ := d.Str(r)
		return fmt.Sprintf("%q", s)
	case pickle.KindBytes:
		b, _ := d.Bytes(r)
		return fmt.Sprintf("b%q", b)
	case pickle.KindGlobal:
		m, n, _ := d.Global(r)
		return m + "." + n
	case pickle.KindTaken:
		v, _ := r.Taken()
		return fmt.Sprint("taken ", v)
	case pickle.KindList:
		return list("[", "]", 1)
	case pickle.KindTuple:
		return list("(", ")", 1)
	case pickle.KindSet:
		return list("set(", ")", 1)
	case pickle.KindDict:
		return list("{", "}", 2)
	case pickle.KindObject:
		callee, args, state, _ := d.Object(r)
		return part(callee) + part(args) + " state " + part(state) + " items " + list("", "", 1)
	case pickle.KindPersistent:
		id, _ := d.Persistent(r)
		return "persistent " + part(id)
	}
	if r.Kind() == pickle.KindNone {
		return "None"
	}
	return r.Kind().String()
}

func allow(module, name string) bool { return module != "os" }

func read(t testing.TB, data []byte, o pickle.Options) *pickle.Data {
	t.Helper()
	d, err := pickle.Read(bytes.NewReader(data), o)
	if err != nil {
		t.Fatalf("%q: %v", data[:min(len(data), 60)], err)
	}
	return d
}

func file(t testing.TB, name string) []byte {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// TestValues reads one value of every type as Python wrote it in every protocol, also a byte at a time.
func TestValues(t *testing.T) {
	var many, dict []string
	for i := range 2500 {
		many = append(many, fmt.Sprint(i))
	}
	for i := range 1100 {
		dict = append(dict, fmt.Sprintf("%d: \"%d\"", i, i))
	}
	for p := range 6 {
		byteValues, sets := `, "set": set(7), "frozen": set(8)`, `b"", b"\x00\xff", b"`+strings.Repeat("y", 300)+`"`
		if p < 4 {
			byteValues, sets = "", ""
		}
		want := `{"none": None, "t": true, "f": false, "ints": [0, 1, -1, 255, 256, 65535, 65536, 2147483647, -2147483648, 2147483648, ` +
			`288230376151711743, 288230376151711744, -288230376151711744, -288230376151711745, 9223372036854775808, -9223372036854775808, ` +
			`18446744073709551615, 18446744073709551616, -1267650600228229401496703205376, 1000000000000000000000000000000], ` +
			`"floats": [0f, -0f, 1.5f, -1e+300f, +Inff, -Inff], ` +
			`"str": ["", "a", "é", "€", "😀", "line\nbreak", "back\\slash \\u0041", "` + strings.Repeat("x", 300) + `"], ` +
			`"bytes": [` + sets + `], "tuples": [(), (1), (1, 2), (1, 2, 3), (1, 2, 3, 4)], "shared": [["x", 1], ["x", 1]]` + byteValues +
			`, "empty": [[], {}, "", ()], "many": [` + strings.Join(many, ", ") + `], "dict": {` + strings.Join(dict, ", ") +
			`}, 3: "int key"}`
		data := file(t, fmt.Sprintf("values_p%d.pickle", p))
		for _, r := range []io.Reader{bytes.NewReader(data), iotest.OneByteReader(bytes.NewReader(data)),
			iotest.DataErrReader(bytes.NewReader(data))} {
			d, err := pickle.Read(r, pickle.Options{Global: allow})
			if err != nil {
				t.Fatalf("protocol %d: %v", p, err)
			}
			if got := show(d, d.Root(), 10); got != want {
				t.Fatalf("protocol %d:\n%s\nwant\n%s", p, got, want)
			}
			v, _ := d.Get(d.Root(), "shared")
			if s := d.Items(v); s[0] != s[1] {
				t.Errorf("protocol %d: one list became two", p)
			}
		}
		for n := range len(data) { // no proper prefix of a pickle is valid
			if n > 300 && n%997 != 0 {
				continue
			}
			if _, err := pickle.Read(bytes.NewReader(data[:n]), pickle.Options{Global: allow}); fault.KindOf(err) != fault.Invalid {
				t.Fatalf("protocol %d: the first %d bytes: %v", p, n, err)
			}
		}
	}
}

// TestInstructions reads instructions that Python's pickler does not write by itself.
func TestInstructions(t *testing.T) {
	for _, c := range [][2]string{
		{"I01\n.", "true"}, {"I00\n.", "false"}, {"I-7\n.", "-7"}, {"L123L\n.", "123"}, {"F2.5\n.", "2.5f"}, {"F1e999\n.", "+Inff"},
		{"S'a\\n\\t\\r\\\\\\'\\x41'\n.", `"a\n\t\r\\'A"`}, {"S\"b\"\n.", `"b"`}, {"Vx\\u20ac\\U0001F600\xe9\\u12\n.", `"x€😀é\\u12"`},
		{"U\x02hi.", `"hi"`}, {"T\x02\x00\x00\x00hi.", `"hi"`}, {"\x8c\x01\xff.", `"�"`},
		{"(\x8c\x01\xff\x8c\x01\xff\x8c\x03\xef\xbf\xbdt.", `("�", "�", "�")`},
		{"\x8d\x02\x00\x00\x00\x00\x00\x00\x00hi.", `"hi"`}, {"\x96\x02\x00\x00\x00\x00\x00\x00\x00hi.", `b"hi"`},
		{"B\x01\x00\x00\x00z.", `b"z"`},
		{"\x8b\x02\x00\x00\x00\x00\x80.", "-32768"}, {"\x8a\x00.", "0"}, {"\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00.",
			"18446744073709551615"},
		{"(I1\nI2\nl.", "[1, 2]"}, {"(S'a'\nI2\nd.", `{"a": 2}`}, {"(K\x01K\x020K\x032\x30t.", "(1, 3)"}, {"(K\x01(0t.", "(1)"},
		{"K\x05(K\x01K\x021.", "5"},
		{"]2a.", "[[…]]"}, {"N}\x940h\x00(K\x01K\x02u.", ""}, {"K\x07p3\n0g3\n.", "7"}, {"K\x07r\x00\x00\x01\x000j\x00\x00\x01\x00.", "7"},
		{"K\x07q\x050K\x08\x940h\x01.", "8"},
		{"\x8f(K\x01K\x02\x90.", "set(1, 2)"}, {"(K\x01\x91.", "set(1)"},
		{"cmod\nname\n.", "mod.name"}, {"\x8c\x03mod\x8c\x04name\x93.", "mod.name"}, {"cmod\nC\n(K\x01tR.", "mod.C(1) state None items "},
		{"cmod\nC\n)\x81}b.", "mod.C() state {} items "}, {"cmod\nC\nK\x01\x85}\x92.", "mod.C(1, {…}) state None items "},
		{"(cmod\nC\nK\x01o.", "mod.C(1) state None items "},
		{"(K\x01imod\nC\n.", "mod.C(1) state None items "}, {"cmod\nC\n)R(K\x01K\x02u.", "mod.C() state None items 1, 2"},
		{"cmod\nC\n)RK\x01a.", "mod.C() state None items 1"},
		{"K\x05Q.", "persistent 5"}, {"Pname\n.", `persistent "name"`},
	} {
		d, err := pickle.Read(strings.NewReader(c[0]), pickle.Options{Global: allow, Persistent: true})
		if c[1] == "" {
			if err == nil {
				t.Errorf("%q: no error", c[0])
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c[0], err)
			continue
		}
		if got := show(d, d.Root(), 1); got != c[1] {
			t.Errorf("%q: %s, want %s", c[0], got, c[1])
		}
	}
	d := read(t, file(t, "ordered.pickle"), pickle.Options{Global: allow})
	if got := show(d, d.Root(), 3); got != `collections.OrderedDict([["a", [1]], ["b", 2]]) state None items ` &&
		got != `collections.OrderedDict() state None items "a", [1], "b", 2` {
		t.Errorf("an ordered dict: %s", got)
	}
	d = read(t, file(t, "circle.pickle"), pickle.Options{})
	if d.Items(d.Root())[0] != d.Root() {
		t.Error("a list with itself in it is none")
	}
}

// TestRefused reads pickles that are broken, need code, or claim more data than they hold.
func TestRefused(t *testing.T) {
	for _, c := range []struct {
		data, want string
		kind       fault.Kind
	}{
		{"", "the pickle is empty", fault.Invalid},
		{"hello", "memo entry 101 does not exist", fault.Invalid},
		{"\x00", "the file is not a pickle: it begins with byte 0x00", fault.Invalid},
		{"K\x01\x00", "0x00 is not an instruction", fault.Invalid},
		{"\x80\x06.", "the pickle has protocol 6", fault.Unsupported},
		{"cos\nsystem\n(S'ls'\ntR.", "the pickle names os.system", fault.Invalid},
		{"\x8c\x02os\x8c\x06system\x93.", "the pickle names os.system", fault.Invalid},
		{"(S'ls'\nios\nsystem\n.", "the pickle names os.system", fault.Invalid},
		{"\x82\x01.", "extension registry", fault.Unsupported}, {"\x97.", "out-of-band", fault.Unsupported},
		{"K\x05Q.", "an object outside it", fault.Invalid}, {"Px\n.", "an object outside it", fault.Invalid},
		{".", "it ends with 0 values and 0 open marks", fault.Invalid}, {"K\x01K\x01.", "it ends with 2 values", fault.Invalid},
		{"K\x01(.", "1 open marks", fault.Invalid},
		{"0", "1 values are needed and 0 are there", fault.Invalid}, {"1", "a mark is missing", fault.Invalid},
		{"2", "1 values", fault.Invalid},
		{"(K\x01d.", "a key without a value", fault.Invalid}, {"}(K\x01u.", "a key without a value", fault.Invalid},
		{"K\x00K\x01K\x02s.", "items are added to a int", fault.Invalid}, {"}K\x01s.", "a container is missing", fault.Invalid},
		{"K\x01K\x02a.", "items are added to a int", fault.Invalid}, {"K\x01(K\x02e.", "items are added to a int", fault.Invalid},
		{"(e.", "a container is missing", fault.Invalid},
		{"]K\x01K\x02s.", "items are added to a list", fault.Invalid}, {"K\x01b.", "a container is missing", fault.Invalid},
		{"()(a", "a container is missing", fault.Invalid}, {"](K\x01a.", "a container is missing", fault.Invalid},
		{"(}(Nb.", "a container is missing", fault.Invalid}, {"]K\x01b.", "items are added to a list", fault.Invalid},
		{"\x94", "1 values are needed", fault.Invalid}, {"h\x07.", "memo entry 7 does not exist", fault.Invalid},
		{"gx\n.", `"x" is not a memo index`, fault.Invalid},
		{"p-1\n.", "is not a memo index", fault.Invalid}, {"Ix\n.", `"x" is not an integer`, fault.Invalid},
		{"Fx\n.", `"x" is not a float`, fault.Invalid},
		{"Sx\n.", "is not a quoted string", fault.Invalid}, {"S'\\q'\n.", "is not a quoted string", fault.Invalid},
		{"S'\\'\n.", "is not a quoted string", fault.Invalid},
		{"S'\\x4'\n.", "is not a quoted string", fault.Invalid}, {"S'\\xzz'\n.", "is not a quoted string", fault.Invalid},
		{"K\x01)R.", "a int is called", fault.Invalid}, {"K\x01K\x02\x93.", "a global is named by a int and a int", fault.Invalid},
		{"cm\nn\nK\x01R.", "a call has a int for arguments", fault.Invalid}, {"(o.", "an object has no class", fault.Invalid},
		{"\x92.", "3 values", fault.Invalid},
		{"I" + strings.Repeat("9", 5000) + "\n.", "an integer of 5000 digits", fault.Unsupported},
		{"\x8b\x01\x20\x00\x00" + strings.Repeat("\x00", 0x2001) + ".", "an integer of 8193 bytes", fault.Unsupported},
		{"V" + strings.Repeat("x", 1<<19), "a line of more than", fault.Invalid}, {"Vxy", "ends in the middle", fault.Invalid},
		{"X\xff\xff\xff\x7f", "needs more than the", fault.OutOfMemory}, {"\x8d\xff\xff\xff\xff\xff\xff\xff\xff", "needs more than the",
			fault.OutOfMemory},
		{"\x8e\x00\x00\x10\x00\x00\x00\x00\x00abc", "ends in the middle", fault.Invalid}, {"\x95\x00", "ends in the middle", fault.Invalid},
		{"K", "ends in the middle", fault.Invalid}, {"J\x00", "ends in the middle", fault.Invalid},
		{"M\x00", "ends in the middle", fault.Invalid}, {"h", "ends in the middle", fault.Invalid},
		{"j\x00", "ends in the middle", fault.Invalid}, {"r\x00", "ends in the middle", fault.Invalid},
		{"q", "ends in the middle", fault.Invalid}, {"G\x00", "ends in the middle", fault.Invalid},
		{"\x80", "ends in the middle", fault.Invalid}, {"cos", "ends in the middle", fault.Invalid},
		{"cos\nx", "ends in the middle", fault.Invalid}, {"P", "ends in the middle", fault.Invalid},
		{strings.Repeat("(", 1<<22), "needs more than the", fault.OutOfMemory}, {strings.Repeat("]", 1<<20), "needs more than the",
			fault.OutOfMemory},
		{strings.Repeat("N", 1<<23), "needs more than the", fault.OutOfMemory},
	} {
		_, err := pickle.Read(strings.NewReader(c.data), pickle.Options{MaxMemory: 16 << 20, Global: func(m, _ string) bool {
			return m == "m"
		}})
		if err == nil || !strings.Contains(err.Error(), c.want) || fault.KindOf(err) != c.kind {
			t.Errorf("%q: error %v of kind %v, want %q of kind %v", c.data[:min(len(c.data), 40)], err, fault.KindOf(err), c.want, c.kind)
		}
	}
	if _, err := pickle.Read(iotest.ErrReader(io.ErrClosedPipe), pickle.Options{}); fault.KindOf(err) != fault.System {
		t.Errorf("a reader that fails: %v", err)
	}
	if _, err := pickle.Read(stuck{}, pickle.Options{}); fault.KindOf(err) != fault.System {
		t.Errorf("a reader that gives nothing: %v", err)
	}
}

// stuck is a reader that returns neither data nor errors.
type stuck struct{}

func (stuck) Read([]byte) (int, error) { return 0, nil }

// TestTake takes values out of a pickle while it is read: lists of numbers become their sums, dicts with a "drop" are removed.
func TestTake(t *testing.T) {
	var offered []string
	take := func(d *pickle.Data, k pickle.Kind, items []pickle.Ref) (pickle.Taken, error) {
		offered = append(offered, fmt.Sprintf("%v%d", k, len(items)))
		var sum int64
		for _, r := range items {
			if s, ok := d.Str(r); ok && s == "drop" {
				return pickle.Taken{Verdict: pickle.Drop}, nil
			}
			n, ok := d.Int(r)
			if !ok {
				return pickle.Taken{}, nil
			}
			sum += n
		}
		return pickle.Taken{Verdict: pickle.Replace, Value: uint64(sum)}, d.Charge(8)
	}
	for _, c := range []struct{ data, want, offered string }{
		{"](](K\x01K\x02e](K\x03ee.", "[taken 3, taken 3]", "list2 list1"},
		{"]]\x94(K\x01K\x02eah\x00a.", "[taken 3, taken 3]", "list2"}, // the second is the memo's
		{"](]\x94(K\x01eh\x00e.", "[taken 1, taken 1]", "list1"},      // complete but not yet in a container
		{"]}\x8c\x04dropNsa.", "[]", "dict2"}, {"](K\x07}(\x8c\x04dropNuK\x08e.", "[7, 8]", "dict2"},
		{"}(K\x01}(\x8c\x04dropNuu.", "{1: None}", "dict2"},                                   // a dict has None there
		{"]]\x942ae.", "", ""},                                                                // no mark
		{"]]2\x86a.", "[([], [])]", ""},                                                       // two references without the memo
		{"]\x94(]\x94(h\x00h\x01ee.", "[[[[…]], [[…]]]]", ""},                                 // circles
		{"(lp0\n(lp1\nI4\naa.", "[taken 4]", "list1"}, {"](]\x94q\x05(K\x02ee.", "[[2]]", ""}, // two numbers in the memo
	} {
		offered = nil
		d, err := pickle.Read(strings.NewReader(c.data), pickle.Options{Take: take})
		if c.want == "" {
			if err == nil {
				t.Errorf("%q: no error", c.data)
			}
			continue
		}
		if err != nil {
			t.Errorf("%q: %v", c.data, err)
			continue
		}
		if got := show(d, d.Root(), 4); got != c.want && !strings.Contains(c.want, "…") || strings.Join(offered, " ") != c.offered {
			t.Errorf("%q: %s after offers of %v, want %s after %s", c.data, got, offered, c.want, c.offered)
		}
	}
	stop := fault.New(fault.Closed, "enough")
	_, err := pickle.Read(strings.NewReader("]]a."), pickle.Options{Take: func(*pickle.Data, pickle.Kind, []pickle.Ref) (
		pickle.Taken, error) {
		return pickle.Taken{}, stop
	}})
	if err != error(stop) {
		t.Errorf("the error of Take became %v", err)
	}
}

// TestAccessors reads values as other kinds.
func TestAccessors(t *testing.T) {
	d := read(t,
		[]byte("(N\x88K\x05\x8a\x09\xff\xff\xff\xff\xff\xff\xff\xff\x00G\x3f\xf8\x00\x00\x00\x00\x00\x00\x8c\x01sC\x01bcm\nn\n]t."),
		pickle.Options{Global: allow})
	var got []string
	for _, r := range d.Items(d.Root()) {
		_, a := d.Bool(r)
		_, b := d.Int(r)
		_, c := d.Uint(r)
		_, e := d.Big(r)
		f, g := d.Float(r)
		_, h := d.Str(r)
		_, i := d.Bytes(r)
		_, _, j := d.Global(r)
		_, _, _, k := d.Object(r)
		_, l := d.Persistent(r)
		_, m := d.Get(r, "x")
		_, n := r.Taken()
		_, o := r.StringID()
		var s strings.Builder
		s.WriteString(r.Kind().String())
		for i, b := range []bool{a, b, c, e, g, h, i, j, k, l, m, n, o} {
			if b {
				fmt.Fprintf(&s, " %d", i)
			}
		}
		got = append(got, s.String()+fmt.Sprintf(" %g", f))
	}
	want := "nil 0;bool 0 1 2 3 4 1;int 1 2 3 4 5;int 2 3 4 1.8446744073709552e+19;float 4 1.5;string 5 12 0;bytes 6 0;global 7 0;list 0"
	if s := strings.Join(got, ";"); s != want {
		t.Errorf("accessors say\n%s\nwant\n%s", s, want)
	}
	if d.Used() <= 0 || pickle.Kind(99).String() != "unknown" || pickle.Ref(0).Kind().String() != "nothing" {
		t.Error("a value that is none has a kind, or nothing is used")
	}
}

// TestClaims reads pickles that claim to be large: memory follows the data, not the claims.
func TestClaims(t *testing.T) {
	for _, data := range []string{"X\x00\x00\x00\x3f", "\x8d\x00\x00\x00\x3f\x00\x00\x00\x00", "B\x00\x00\x00\x3f",
		"\x8e\x00\x00\x00\x3f\x00\x00\x00\x00", "\x8b\x00\x00\x00\x3f",
		"Nr\xff\xff\xff\xff0.", "Np4000000000\n."} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		_, err := pickle.Read(strings.NewReader(data), pickle.Options{MaxMemory: 1 << 31})
		runtime.ReadMemStats(&after)
		if n := after.TotalAlloc - before.TotalAlloc; n > 1<<20 {
			t.Errorf("%q: %d bytes allocated, error %v", data, n, err)
		}
	}
}

// TestWriter writes every kind of value and reads it back.
func TestWriter(t *testing.T) {
	var b bytes.Buffer
	w := pickle.NewWriter(&b)
	w.EmptyList()
	w.Mark()
	ints := []int64{0, 1, -1, 255, 256, 65535, 65536, math.MaxInt32, math.MinInt32, math.MaxInt32 + 1, math.MinInt32 - 1, 1<<39 - 1,
		1 << 39, -1 << 39,
		1<<47 - 1, 1 << 47, 1 << 55, -1<<55 - 1, math.MaxInt64, math.MinInt64}
	want := "["
	for _, n := range ints {
		w.Int(n)
		want += fmt.Sprint(n, ", ")
	}
	w.Uint(math.MaxUint64)
	for _, s := range []string{"-340282366920938463463374607431768211456", "340282366920938463463374607431768211455",
		"-9223372036854775809"} {
		n, _ := new(big.Int).SetString(s, 10)
		w.Big(n)
	}
	w.Big(big.NewInt(7))
	w.Float(-2.5)
	w.Bool(true)
	w.Bool(false)
	w.None()
	for range 2 {
		w.String("twice")
		w.String("bad \xff text")
	}
	for i := range 300 {
		w.String(fmt.Sprint(i))
	}
	w.String("299")
	w.String(strings.Repeat("long", 1<<15))
	w.Bytes([]byte("bytes"))
	w.Bytes(bytes.Repeat([]byte("b"), 1<<17))
	w.EmptyDict()
	id := w.Memoize()
	w.Mark()
	w.String("k")
	w.Mark()
	w.Int(1)
	w.Int(2)
	w.Tuple()
	w.String("p")
	w.Int(3)
	w.Int(4)
	w.Pair()
	w.SetItems()
	w.Get(id)
	w.Global("m", "C")
	w.Mark()
	w.Int(3)
	w.Tuple()
	w.Reduce()
	w.EmptyDict()
	w.Build()
	w.String("storage")
	w.Persistent()
	w.Appends()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	want += `18446744073709551615, -340282366920938463463374607431768211456, 340282366920938463463374607431768211455, -9223372036854775809, 7, -2.5f, true, false, None, ` +
		`"twice", "bad � text", "twice", "bad � text", `
	for i := range 300 {
		want += fmt.Sprintf("\"%d\", ", i)
	}
	want += `"299", "` + strings.Repeat("long", 1<<15) + `", b"bytes", b"` + strings.Repeat("b", 1<<17) +
		`", {"k": (1, 2), "p": (3, 4)}, {"k": (1, 2), "p": (3, 4)}, m.C(3) state {} items , persistent "storage"]`
	d := read(t, b.Bytes(), pickle.Options{Global: allow, Persistent: true})
	if got := show(d, d.Root(), 5); got != want {
		t.Errorf("read back:\n%s\nwant\n%s", got, want)
	}
}

// broken is a writer that fails after n bytes.
type broken struct{ n int }

func (b *broken) Write(p []byte) (int, error) {
	if b.n -= len(p); b.n < 0 {
		return 0, io.ErrShortWrite
	}
	return len(p), nil
}

func TestWriterErrors(t *testing.T) {
	for _, n := range []int{0, 1 << 16, 1 << 17} {
		w := pickle.NewWriter(&broken{n})
		w.EmptyList()
		w.Mark()
		for range 1 << 15 {
			w.Int(1 << 30)
		}
		w.String(strings.Repeat("x", 1<<17))
		w.Appends()
		if err := w.Close(); fault.KindOf(err) != fault.System {
			t.Errorf("a writer that fails after %d bytes: %v", n, err)
		}
	}
	w := pickle.NewWriter(io.Discard)
	w.Big(new(big.Int).Lsh(big.NewInt(1), 3000))
	if err := w.Close(); fault.KindOf(err) != fault.Unsupported || !strings.Contains(err.Error(), "376 bytes") {
		t.Errorf("a huge integer: %v", err)
	}
}

// A pickle of protocol 2 has no later instructions, which some readers do not know.
func TestWriter2(t *testing.T) {
	var b bytes.Buffer
	w := pickle.NewWriter2(&b)
	w.EmptyList()
	w.Mark()
	for i := range 300 {
		w.String(fmt.Sprint(i))
	}
	w.String("7")
	w.String(strings.Repeat("x", 1000))
	w.Global("torch", "FloatStorage")
	w.EmptyDict()
	id := w.Memoize()
	w.Get(id)
	w.Appends()
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if b.Bytes()[1] != 2 {
		t.Errorf("protocol %d", b.Bytes()[1])
	}
	d := read(t, b.Bytes(), pickle.Options{Global: allow})
	items := d.Items(d.Root())
	if len(items) != 305 {
		t.Fatalf("%d items", len(items))
	}
	if s, _ := d.Str(items[300]); s != "7" {
		t.Errorf("item 300 is %q", s)
	}
	if items[303] != items[304] {
		t.Error("the dict is two")
	}
	b.Reset()
	w = pickle.NewWriter2(&b)
	w.String("text")
	w.Global("m", "C")
	w.Memoize()
	if err := w.Close(); err != nil || b.String() != "\x80\x02X\x04\x00\x00\x00textq\x00cm\nC\nq\x01." {
		t.Errorf("%q, %v", b.Bytes(), err)
	}
	w = pickle.NewWriter2(&b)
	w.Bytes(nil)
	if err := w.Close(); err == nil {
		t.Error("bytes were written")
	}
}

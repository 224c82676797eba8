package approx

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/rand/v2"
	"testing"
)

// TestSignificands compares the results for all significands with those of an H200, by their hashes.
func TestSignificands(t *testing.T) {
	for _, c := range []struct {
		name string
		f    func(x float32) float32
		want string
	}{
		{"2^x", Exp2, "cce5df10202dbfcde720ca547d147edb3e2a406a5fed189323f419177a72a1a5"},
		{"1/x", Reciprocal, "c408381446132e07fa5581e930dc33fb790bea7ec4276ef3621e322df2492a55"},
	} {
		h, b := sha256.New(), make([]byte, 0, 4<<10)
		for k := range uint32(one) {
			if b = binary.LittleEndian.AppendUint32(b, math.Float32bits(c.f(math.Float32frombits(127<<fraction|k)))); len(b) == cap(b) {
				h.Write(b)
				b = b[:0]
			}
		}
		if got := hex.EncodeToString(h.Sum(nil)); got != c.want {
			t.Errorf("%s for x from 1 to 2: the hash of the results is %s, that of an H200's is %s", c.name, got, c.want)
		}
	}
}

// TestArguments compares results for arguments of all kinds with those of an H200.
func TestArguments(t *testing.T) {
	for _, c := range []struct{ x, exp2, reciprocal uint32 }{
		{0, 0x3f800000, 0x7f800000}, {0x80000000, 0x3f800000, 0xff800000}, // zeros
		{0x000ae398, 0x3f800000, 0x7f800000}, {0x800ae398, 0x3f800000, 0xff800000}, // subnormals
		{0x00000001, 0x3f800000, 0x7f800000}, {0x00800000, 0x3f800000, 0x7e800000},
		{0x7f800000, 0x7f800000, 0}, {0xff800000, 0, 0x80000000}, // infinities
		{0x7fc00000, 0x7fffffff, 0x7fffffff}, {0xffc12345, 0x7fffffff, 0x7fffffff}, {0x7f812345, 0x7fffffff, 0x7fffffff},
		{0x42fffff3, 0x7f7ffb7f, 0x3c000007}, {0x43000000, 0x7f800000, 0x3c000000}, {0x43010000, 0x7f800000, 0x3bfe03f8}, // 128
		{0xc2fc0000, 0x00800000, 0xbc020821}, {0xc2fc000d, 0, 0xbc02081a}, {0xc2fbffff, 0x0080002c, 0xbc020821}, // -126
		{0xc2fe0000, 0, 0xbc010204}, {0x7149f2ca, 0x7f800000, 0x0da24260}, {0xf149f2ca, 0, 0x8da24260},
		{0x0da24260, 0x3f800000, 0x7149f2ca}, {0x7e800000, 0x7f800000, 0x00800000}, {0x7f000000, 0x7f800000, 0},
		{0x7f7fffff, 0x7f800000, 0},
		{0xc0c00000, 0x3c800000, 0xbe2aaaab}, {0xbf800000, 0x3f000000, 0xbf800000}, // integers
		{0xb4000000, 0x3f7ffffe, 0xcb000000}, {0xb3808b80, 0x3f800000, 0xcb7eea2f}, // small
		{0xb4c00000, 0x3f7ffffb, 0xca2aaaab},
	} {
		x := math.Float32frombits(c.x)
		if got := math.Float32bits(Exp2(x)); got != c.exp2 {
			t.Errorf("2^%v (%#x) is %#x, not %#x", x, c.x, got, c.exp2)
		}
		if got := math.Float32bits(Reciprocal(x)); got != c.reciprocal {
			t.Errorf("1/%v (%#x) is %#x, not %#x", x, c.x, got, c.reciprocal)
		}
	}
}

// TestErrors compares results with exact ones.
func TestErrors(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	worst := [2]float64{}
	for range 1 << 22 {
		x := float32(rng.Float64()*252 - 126)
		worst[0] = max(worst[0], math.Abs(float64(Exp2(x))/math.Exp2(float64(x))-1))
		x = float32(math.Ldexp(1+rng.Float64(), rng.IntN(250)-125))
		worst[1] = max(worst[1], math.Abs(float64(Reciprocal(x))*float64(x)-1))
	}
	t.Logf("relative errors: 2^x 2^%.2f, 1/x 2^%.2f", math.Log2(worst[0]), math.Log2(worst[1]))
	if worst[0] > 0x1p-22 || worst[1] > 0x1p-23 {
		t.Errorf("the relative errors are %v and %v", worst[0], worst[1])
	}
}

// TestSquare compares square with the sum of the bits' products.
func TestSquare(t *testing.T) {
	for x := range uint64(1 << 17) {
		want := uint64(0)
		for i := range 17 {
			if x>>i&1 == 0 {
				continue
			}
			if 2*i >= 19 {
				want += 1 << (2 * i)
			}
			for j := i + 1; j < 17; j++ {
				if i+j+1 >= 19 {
					want += x >> j & 1 << (i + j + 1)
				}
			}
		}
		if got := uint64(square(uint32(x))) << 19; got != want {
			t.Fatalf("the square of %d is %d, not %d", x, got, want)
		}
	}
}

func BenchmarkExp2(b *testing.B) {
	var x, y [1024]float32
	for i := range x {
		x[i] = float32(i)/64 - 8
	}
	b.SetBytes(4 * int64(len(x)))
	for b.Loop() {
		for i, v := range x {
			y[i] = Exp2(v)
		}
	}
}

func BenchmarkReciprocal(b *testing.B) {
	var x, y [1024]float32
	for i := range x {
		x[i] = float32(i) + 1
	}
	b.SetBytes(4 * int64(len(x)))
	for b.Loop() {
		for i, v := range x {
			y[i] = Reciprocal(v)
		}
	}
}

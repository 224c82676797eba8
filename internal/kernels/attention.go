package kernels

import (
	"fmt"

	"tenon.dev/dtype"
	"tenon.dev/internal/kir"
	"tenon.dev/kernel"
)

// Attention of heads without storing its weights. A block holds a tile of queries, iterates over the keys tile by tile, and rescales its
// sums whenever it finds a greater score (Dao et al., "FlashAttention", 2022, and Milakov and Gimelshein, "Online normalizer calculation
// for softmax", 2018). The backward pass recomputes the weights from the logarithm of each row's sum. It sums the gradients of keys and
// values in blocks of keys, in the order of queries, and those of queries in blocks of queries, in the order of keys, so equal operands
// give equal bits.

// attentionStage is a kernel of attention.
type attentionStage = uint16

const (
	attentionForward attentionStage = iota
	// attentionDelta computes, for each row, the negated dot product of the result and its gradient, and copies the logarithm of the row's
	// sum. The other stages of the backward pass read both.
	attentionDelta
	// attentionQueries computes the gradient of queries, attentionKeys those of keys and values.
	attentionQueries
	attentionKeys
	// attentionFew is attentionForward for few queries. It may divide the keys into parts, which attentionJoin adds up.
	attentionFew
	attentionJoin
	// attentionSpans finds, for each batch, the first and the last key that queries see under a mask for all queries and heads, and whether
	// they see all in between.
	attentionSpans
	// attentionMask computes the gradient of a mask that is added to the scores.
	attentionMask
)

// attentionSpec is what kernels of attention are specialised on.
type attentionSpec struct {
	// Groups is the length of a head's vectors in groups of 8 elements. Piece, if not 0, is which of the pieces of vectors has gradients in
	// attentionKeys, counted from 1.
	Groups, Piece uint8
	// Rows is the number of queries (or keys, in attentionKeys) per block, Step the number of keys
	// (or queries) per iteration.
	Rows, Step, Stages uint8
	// Causal: a query sees only the keys up to its own position. Mapped: tensor maps describe the operands that the block iterates over.
	// Grouped: in attentionKeys, several heads of queries share one head of keys.
	Causal, Mapped, Grouped bool
	// Padding says what queries have in common under the mask. Pairs: two keys' elements of it are loaded together, except in
	// attentionKeys. Divided: attentionFew leaves its sums to attentionJoin.
	Padding        maskPadding
	Pairs, Divided bool
	// Loads is the number of keys that a lane of attentionFew loads together.
	Loads uint8
}

// maskPadding says what queries have in common under a mask.
type maskPadding uint8

const (
	_ maskPadding = iota
	// maskSame: the mask is the same for all queries of a head, and in attentionFew of all heads.
	maskSame
	// maskSpans: the mask is the same for all queries of a batch, and attentionSpans has found which keys they see.
	maskSpans
)

// AttentionOpt are the options of attention.
type AttentionOpt struct {
	// Scale multiplies the scores and must be positive.
	Scale float64
	// Causal lets query i see only the keys 0 to i. It excludes Mask.
	Causal bool
	// Mask, if present, has the shape of the scores [B, H, T, S], with any strides, and 0 where it broadcasts. A Bool says whether a query
	// sees a key, and an element of the operands' type is added to the score. Queries that see no key get the result 0.
	Mask Operand
	// Kept, if present, says which weights are kept, as the bits of DropoutBits do, and the others become 0. KeptScale multiplies those
	// that are kept.
	Kept      Operand
	KeptScale float64
	// MaskGrad, if present, is contiguous, [B, H, T, MaskGradLine(S)] and of the operands' type. AttentionBackward sets it to the gradients
	// of what Mask adds to each score.
	MaskGrad Operand
}

// MaskGradKeys is the maximum number of keys for which AttentionBackward computes MaskGrad.
const MaskGradKeys = 65535 * 64

// MaskGradLine returns the length of the lines of AttentionOpt.MaskGrad for a number of keys.
func MaskGradLine(keys int) int { return ceilDiv(keys, 8) * 8 }

// AttentionTakes reports whether the kernels of attention run on the device for heads of t with vectors of width elements.
func AttentionTakes(lim *Limits, t dtype.DType, width int) bool {
	return t.Size() == 2 && t.IsFloat() && width >= 8 && width <= 2*mostColumns && width%8 == 0 && lim.Major >= 8 &&
		(width <= mostColumns || lim.SharedPerBlock >= longShared)
}

// attention is a planned attention: batches of heads of queries by keys. Several heads of queries share one head of keys.
type attention struct {
	opt                         AttentionOpt
	batch, heads, shared        int
	queries, keys, width        int
	q, k, v, out, g, dq, dk, dv Operand
	mask                        Operand
	lse                         uint64
	// delta and sums are what attentionDelta computes and copies, padded rows for each head of queries, or the parts of attentionFew: the
	// sums of weighted values, and for each of them the greatest score and the sum of weights.
	delta, sums uint64
	padded      int
	// spans is what attentionSpans finds, or 0.
	spans uint64
}

// Attention sets out [B, H, T, D] to softmax(scale q kᵀ) v and lse [B, H, T], dense and Float32, to the base-2 logarithm of each row's sum
// of exponentials. q is [B, H, T, D], k and v are [B, H/n, S, D], all of one half type that AttentionTakes accepts; T and S are positive.
func Attention(is Issuer, out, lse, q, k, v Operand, opt AttentionOpt) error {
	a := attention{opt: opt, q: q, k: k, v: v, out: out, lse: lse.Ptr}
	if err := a.plan(is); err != nil {
		return err
	}
	if a.isFew() {
		return a.issueFew(is)
	}
	if err := a.issueSpans(is); err != nil {
		return err
	}
	return a.issue(is, attentionForward)
}

// AttentionBackward sets dq, dk and dv to the gradients of queries, keys and values. g is the gradient of the result. The other operands
// are those of Attention, including its results.
func AttentionBackward(is Issuer, dq, dk, dv, g, out, lse, q, k, v Operand, opt AttentionOpt) error {
	a := attention{opt: opt, q: q, k: k, v: v, out: out, g: g, dq: dq, dk: dk, dv: dv, lse: lse.Ptr}
	err := a.plan(is)
	if err != nil {
		return err
	}
	a.padded = ceilDiv(a.queries, rowGroup) * rowGroup
	if a.batch*a.heads*a.padded >= 1<<31 {
		return fmt.Errorf("attention of %v by %v: its gradients need more blocks than a launch can have", q.Shape, k.Shape)
	}
	if a.delta, err = is.Workspace(2 * 4 * a.batch * a.heads * a.padded); err != nil {
		return err
	}
	a.sums = a.delta + uint64(4*a.batch*a.heads*a.padded)
	if err := a.issueSpans(is); err != nil {
		return err
	}
	for _, stage := range []attentionStage{attentionDelta, attentionKeys, attentionQueries} {
		if err := a.issue(is, stage); err != nil {
			return err
		}
	}
	if opt.MaskGrad.Ptr != 0 {
		return a.issue(is, attentionMask)
	}
	return nil
}

// plan checks the shapes and copies operands whose rows are not aligned.
func (a *attention) plan(is Issuer) error {
	s, t := a.q.Shape, a.k.Shape
	fit := len(s) == 4 && len(t) == 4 && s[0] == t[0] && t[1] > 0 && s[1]%t[1] == 0 && s[3] == t[3]
	if !fit || !AttentionTakes(is.Limits(), a.q.DType, s[3]) {
		return fmt.Errorf("attention of %v by %v in %v", s, t, a.q.DType)
	}
	a.batch, a.heads, a.queries, a.width = s[0], s[1], s[2], s[3]
	a.shared, a.keys = s[1]/t[1], t[2]
	if a.queries >= 1<<30 || a.keys >= 1<<30 || a.batch*a.heads*ceilDiv(max(a.queries, a.keys), 16) >= 1<<31 {
		return fmt.Errorf("attention of %v by %v: it needs more blocks than a launch can have", s, t)
	}
	for _, o := range []*Operand{&a.q, &a.k, &a.v, &a.out, &a.g} {
		if o.Ptr == 0 || alignedRows(o) {
			continue
		}
		stride := []int{0, 0, 0, 1}
		size := o.Shape[3]
		for d := 2; d >= 0; d-- {
			stride[d] = size
			size *= o.Shape[d]
		}
		var err error
		if *o, err = layOut(is, *o, stride, size); err != nil {
			return err
		}
	}
	return a.layMask(is)
}

// alignedRows reports whether the rows of o are contiguous and can be read 16 bytes at a time.
func alignedRows(o *Operand) bool {
	n := 16 / o.DType.Size()
	ok := o.Stride[3] == 1 && o.Ptr%16 == 0
	for d := range 3 {
		ok = ok && (o.Stride[d]%n == 0 || o.Shape[d] == 1)
	}
	return ok
}

// tile chooses the tile of a stage that was fastest on an H200. Long sequences of long vectors use many rows per block, so that the other
// operands are read less often; others use fewer rows, so that more blocks share a multiprocessor. Wide steps have fewer and larger
// products, but with few steps a block has too little to overlap.
func (a *attention) tile(lim *Limits, stage attentionStage) attentionSpec {
	s := attentionSpec{Groups: uint8(a.width / 8), Rows: 64, Step: 64, Stages: 2, Causal: a.opt.Causal}
	wideFrom, width := 0, 8*s.lanes()
	dropped := a.opt.Kept.Ptr != 0
	switch {
	case stage == attentionMask: // which has one step
		s.Stages = 1
	case width > mostColumns && stage != attentionForward: // more would not fit into registers
		s.Step, s.Stages = 32, 3
	case width > mostColumns:
		if s.Rows = 128; a.queries <= 64 || s.shared() > lim.SharedPerBlock {
			s.Rows = 64
		}
	case stage == attentionForward && width > 64 && a.queries > 64:
		s.Rows, s.Stages, wideFrom = 128, 4, 1024
	case stage == attentionForward && width == 64:
		wideFrom = 4096
	case stage == attentionKeys && width == 64:
		s.Stages, wideFrom = 3, 512
	case stage != attentionForward && width <= 64:
		s.Stages = 3
	}
	walked := a.keys
	if stage == attentionKeys {
		walked = a.queries
	}
	if wideFrom > 0 && walked >= wideFrom && !(dropped && stage == attentionKeys) && a.mappable(lim, stage) {
		s.Step, s.Stages = 128, 2
	}
	for s.Stages > 1 && s.shared() > lim.SharedPerBlock {
		s.Stages--
	}
	return s
}

// spec returns what a stage's kernel is specialised on.
func (a *attention) spec(lim *Limits, stage attentionStage) attentionSpec {
	if stage == attentionDelta {
		return attentionSpec{Groups: uint8(a.width / 8)}
	}
	s := a.tile(lim, stage)
	s.Mapped = s.Stages > 1 && a.mappable(lim, stage)
	s.Grouped = stage == attentionKeys && a.shared > 1
	return s
}

// threads is the number of threads per block: two for each row, so that four warps have 64 rows.
func (s *attentionSpec) threads() int { return 2 * int(s.Rows) }

// shared returns an upper estimate of the shared memory of a tile: two operands of the block, two and two rows for each stage, and the
// passage of results to memory.
func (s *attentionSpec) shared() int {
	return 2*s.columns()*2*(int(s.Rows)+int(s.Stages)*int(s.Step)) + 2*4*int(s.Stages)*int(s.Step) + 18<<10
}

// walks returns the operands that a stage's blocks iterate over.
func (a *attention) walks(stage attentionStage) [2]*Operand {
	if stage == attentionKeys {
		return [2]*Operand{&a.q, &a.g}
	}
	return [2]*Operand{&a.k, &a.v}
}

func (a *attention) mappable(lim *Limits, stage attentionStage) bool {
	if lim.Major != 9 || lim.Minor != 0 {
		return false
	}
	for _, o := range a.walks(stage) {
		for d := range o.Shape[:min(3, len(o.Shape))] {
			if n := o.Stride[d]; o.Shape[d] > 1 && (n <= 0 || n*o.DType.Size() >= 1<<40) {
				return false
			}
		}
	}
	return true
}

// tensorMap returns the map of o for tiles of s with the given number of columns.
func (a *attention) tensorMap(o *Operand, s *attentionSpec, columns int) kir.TensorMap {
	size := o.DType.Size()
	m := kir.TensorMap{Addr: o.Ptr, Tile: kir.MapTile{Type: o.DType, Line: columns, Lines: int(s.Step), Groups: true}}
	m.Dims = [4]int{a.width, o.Shape[2], o.Shape[1], o.Shape[0]}
	for i := range m.Strides {
		if m.Strides[i] = a.width * size; m.Dims[i+1] > 1 {
			m.Strides[i] = o.Stride[2-i] * size
		}
	}
	return m
}

// rowMap returns the map of delta and sums.
func (a *attention) rowMap(step int) kir.TensorMap {
	lines := a.batch * a.heads
	m := kir.TensorMap{Addr: a.delta, Tile: kir.MapTile{Type: dtype.Float32, Line: step, Lines: 1}}
	m.Dims = [4]int{a.padded, lines, 2, 1}
	m.Strides = [3]int{4 * a.padded, 4 * a.padded * lines, 4 * a.padded * lines}
	return m
}

func (a *attention) issue(is Issuer, stage attentionStage) error {
	s := a.spec(is.Limits(), stage)
	if stage != attentionKeys || a.width <= mostColumns {
		return a.issueSpec(is, stage, s)
	}
	for range s.pieces() {
		s.Piece++
		if err := a.issueSpec(is, stage, s); err != nil {
			return err
		}
	}
	return nil
}

func (a *attention) issueSpec(is Issuer, stage attentionStage, s attentionSpec) error {
	l := is.NewLaunch()
	var args attentionArgs
	r := a.fill(&l.Spec, stage, s, &args)
	if a.mask.Ptr != 0 && stage != attentionDelta {
		r.Pairs = stage != attentionKeys && a.maskInPairs()
		switch {
		case a.spans != 0:
			r.Padding = maskSpans
		case a.mask.Stride[2] == 0:
			r.Padding = maskSame
		}
	}
	args.rows.host = a.batch * a.heads * a.padded
	if r.Mapped {
		for i, o := range a.walks(stage) {
			for p, columns := range r.pieces() {
				args.maps[i][p].host = a.tensorMap(o, r, columns)
			}
		}
		args.rowMap.host = a.rowMap(int(r.Step))
	}
	blocks, threads := ceilDiv(args.rows.host, deltaThreads/r.lanes()), deltaThreads
	if stage != attentionDelta {
		blocks, threads = a.sections(stage, int(r.Rows), &args), r.threads()
	}
	args.layout(packing(l))
	l.Grid, l.Block = [3]uint32{uint32(blocks), 1, 1}, [3]uint32{uint32(threads), 1, 1}
	if stage == attentionMask {
		l.Grid[1] = uint32(ceilDiv(a.keys, int(r.Step)))
	}
	return is.Issue(l)
}

// fill sets the spec of a stage's kernel, except what it says about access to the mask, and the arguments that the stages have in common.
func (a *attention) fill(s *Spec, stage attentionStage, r attentionSpec, args *attentionArgs) *attentionSpec {
	t := a.q.DType
	s.Family, s.Op, s.Compute, s.Outs, s.Ins, s.Attention = FamilyAttention, stage, t, 1, 1, r
	s.DTypes[0], s.DTypes[1] = t, t
	if a.mask.Ptr != 0 && stage != attentionDelta {
		s.Ins, s.DTypes[maskType] = 2, a.mask.DType
		args.mask.host, args.maskStride.host = a.mask.Ptr, a.mask.Stride[:3]
	}
	if a.opt.Kept.Ptr != 0 && stage != attentionDelta {
		s.Ins, s.DTypes[keptType] = 3, a.opt.Kept.DType
		args.kept.host, args.keptWords.host, args.keptScale.host = a.opt.Kept.Ptr, a.opt.Kept.Shape[2], a.opt.KeptScale
	}
	for i, o := range a.operands() {
		args.at[i].host = o.Ptr
		if o.Ptr != 0 {
			args.stride[i].host = o.Stride[:3]
		}
	}
	args.lse.host, args.delta.host, args.sums.host, args.padded.host = a.lse, a.delta, a.sums, a.padded
	args.spans.host, args.maskGrad.host = a.spans, a.opt.MaskGrad.Ptr
	args.heads.host, args.shared.host, args.queries.host, args.keys.host = a.heads, a.shared, a.queries, a.keys
	args.scale.host = a.opt.Scale
	return &s.Attention
}

// sectionBytes is how much the blocks of a section may read in all. It should fit in the device's L2 cache, which has 50 MiB on an H200.
// Tests lower it.
var sectionBytes = 32 << 20

// sectionFrom is the number of blocks of a head from which on the order of their work matters. With four blocks a head, of one to four
// steps, the backward pass took 9 % longer in that order on an H200, since the last blocks then have nothing but their beginning and end.
const sectionFrom = 8

// sections returns the number of blocks of a stage, each with rows rows. It sets the arguments that say how many heads they belong to, and
// how many of these form a section: in causal attention, the blocks of all heads of a section start in the order of their work. The heads
// are divided evenly.
func (a *attention) sections(stage attentionStage, rows int, args *attentionArgs) int {
	matrices, blocks, bytes := a.batch*a.heads, ceilDiv(a.queries, rows), 2*2*a.width*a.keys/a.shared
	if stage == attentionKeys {
		matrices, blocks, bytes = matrices/a.shared, ceilDiv(a.keys, rows), 2*2*a.width*a.queries*a.shared
	}
	args.matrices.host, args.section.host = matrices, 1
	if blocks >= sectionFrom {
		most := max(1, sectionBytes/max(1, bytes))
		args.section.host = ceilDiv(matrices, ceilDiv(matrices, most))
	}
	return matrices * blocks
}

// deltaThreads is the number of threads per block of attentionDelta.
const deltaThreads = 256

// The operands of attention.
const (
	atQ = iota
	atK
	atV
	atOut
	atG
	atDQ
	atDK
	atDV
	attentionOperands
)

func (a *attention) operands() [attentionOperands]*Operand {
	return [...]*Operand{&a.q, &a.k, &a.v, &a.out, &a.g, &a.dq, &a.dk, &a.dv}
}

// attentionArgs are the arguments of all kernels of attention. Strides are those of batches, heads and rows.
type attentionArgs struct {
	at                                         [attentionOperands]bufferArg
	stride                                     [attentionOperands]listArg[int]
	lse, delta, sums                           bufferArg
	mask, spans, maskGrad, kept                bufferArg
	maskStride                                 listArg[int]
	keptWords                                  intArg
	keptScale                                  floatArg
	heads, shared, queries, keys, rows, padded intArg
	// matrices is the number of heads of all batches whose tiles are blocks, and section the number of them whose blocks take turns.
	matrices, section intArg
	// The keys of a head are divided into parts parts of part keys each in attentionFew.
	parts, part intArg
	scale       floatArg
	maps        [2][2]mapArg
	// rowMap describes delta and sums to attentionKeys.
	rowMap mapArg
}

// attentionUses lists the operands of each stage.
func (s *Spec) attentionUses() []int {
	switch s.Op {
	case attentionForward:
		return []int{atQ, atK, atV, atOut}
	case attentionDelta:
		return []int{atOut, atG}
	case attentionQueries:
		return []int{atQ, atK, atV, atG, atDQ}
	case attentionMask:
		return []int{atQ, atK, atV, atG}
	case attentionFew:
		return []int{atQ, atK, atV, atOut}
	case attentionJoin:
		return []int{atOut}
	case attentionSpans:
		return nil
	}
	return []int{atQ, atK, atV, atG, atDK, atDV}
}

func (a *attentionArgs) layout(p params) {
	names := [...]string{"q", "k", "v", "out", "g", "dq", "dk", "dv"}
	for _, i := range p.s.attentionUses() {
		if i >= atDQ || i == atOut && p.s.Op != attentionDelta {
			p.buffer(&a.at[i], names[i], p.s.Compute)
		} else {
			p.bufferRO(&a.at[i], names[i], p.s.Compute)
		}
		list(p, &a.stride[i], names[i]+"_stride", 3)
	}
	switch p.s.Op {
	case attentionForward:
		p.buffer(&a.lse, "lse", dtype.Float32)
	case attentionFew:
		p.buffer(&a.lse, "lse", dtype.Float32)
		p.buffer(&a.delta, "delta", dtype.Float32)
		p.buffer(&a.sums, "sums", dtype.Float32)
		p.i32s("parts part", &a.parts, &a.part)
	case attentionJoin:
		p.buffer(&a.lse, "lse", dtype.Float32)
		p.bufferRO(&a.delta, "delta", dtype.Float32)
		p.bufferRO(&a.sums, "sums", dtype.Float32)
		p.i32s("parts part", &a.parts, &a.part)
	case attentionDelta:
		p.bufferRO(&a.lse, "lse", dtype.Float32)
		p.buffer(&a.delta, "delta", dtype.Float32)
		p.buffer(&a.sums, "sums", dtype.Float32)
	case attentionSpans:
		p.buffer(&a.spans, "spans", dtype.Int32)
	default:
		p.bufferRO(&a.delta, "delta", dtype.Float32)
		p.bufferRO(&a.sums, "sums", dtype.Float32)
	}
	p.i32s("heads shared queries keys rows padded matrices section", &a.heads, &a.shared, &a.queries, &a.keys, &a.rows, &a.padded,
		&a.matrices, &a.section)
	p.f64(&a.scale, "scale")
	if p.s.masked() && p.s.Op != attentionJoin {
		p.bufferRO(&a.mask, "mask", p.s.maskAccess())
		list(p, &a.maskStride, "mask_stride", 3)
	}
	if p.s.spanned() {
		p.bufferRO(&a.spans, "spans", dtype.Int32)
	}
	if p.s.Op == attentionMask {
		p.buffer(&a.maskGrad, "mask_grad", p.s.Compute)
	}
	if p.s.drops() {
		p.bufferRO(&a.kept, "kept", p.s.keptAccess())
		p.i32(&a.keptWords, "kept_words")
		p.f64(&a.keptScale, "kept_scale")
	}
	if p.s.Attention.Mapped {
		for i := range a.maps {
			for n := range p.s.Attention.pieces() {
				p.tensorMap(&a.maps[i][n], p.number("map", 2*n+i), false)
			}
		}
		if p.s.Op == attentionKeys {
			p.tensorMap(&a.rowMap, "row_map", true)
		}
	}
}

var _ = register(FamilyAttention, buildAttention)

func buildAttention(s *Spec) *kernel.Kernel {
	name := [...]string{"attention", "attention_delta", "attention_queries", "attention_keys", "attention_few", "attention_join",
		"attention_spans", "attention_mask"}[s.Op]
	return kernel.Build(s.name(name), func(k *kernel.Builder) {
		a := &attentionKernel{k: k, s: s}
		a.layout(declaring(k, s))
		switch s.Op {
		case attentionForward:
			a.forward()
		case attentionDelta:
			a.rowProducts()
		case attentionQueries:
			a.gradQueries()
		case attentionKeys:
			a.gradKeys()
		case attentionFew:
			a.few()
		case attentionJoin:
			a.join()
		case attentionSpans:
			a.findSpans()
		case attentionMask:
			a.gradMask()
		}
	})
}

// attentionKernel builds a kernel of attention.
type attentionKernel struct {
	attentionArgs
	k *kernel.Builder
	s *Spec
	// batch and head are those of the block (Int32); first is the first query or key of its tile.
	batch, head, first kernel.Value
	// from and to are where the keys begin and end that queries of the batch see, and whole (Bool) says that they see all in between.
	// Without spans, from and whole are absent.
	from, to, whole kernel.Value
}

// begin assigns the block a tile of n queries or keys of a head, and returns the sizes of its tiles.
func (a *attentionKernel) begin(n, heads kernel.Value) (rows, step int) {
	s := &a.s.Attention
	a.k.FixedThreads(s.threads())
	a.place(a.tiles(n, int(s.Rows)), heads)
	a.loadSpan()
	return int(s.Rows), int(s.Step)
}

// place computes the block's batch, head and tile; tiles is the number of tiles per head. In causal attention the tiles with the most work
// come first, those of the last queries and of the first keys, so that few blocks run at the end.
func (a *attentionKernel) place(tiles, heads kernel.Value) {
	k := a.k
	id := k.BlockIdx(kernel.X)
	matrix := id.Div(tiles)
	tile := id.Sub(matrix.Mul(tiles))
	if a.s.Attention.Causal {
		section := id.Div(tiles.Mul(a.section.Value))
		first := section.Mul(a.section.Value)
		n := a.section.Min(a.matrices.Sub(first))
		id = id.Sub(first.Mul(tiles))
		tile = id.Div(n)
		matrix = first.Add(id.Sub(tile.Mul(n)))
	}
	if a.s.Op != attentionKeys {
		tile = tiles.Sub(k.I32(1)).Sub(tile)
	}
	a.batch = matrix.Div(heads)
	a.head = matrix.Sub(a.batch.Mul(heads))
	a.first = tile.Mul(k.I32(int(a.s.Attention.Rows)))
}

// matrix returns operand i of a batch and head.
func (a *attentionKernel) matrix(i int, head kernel.Value) kernel.Buffer {
	st := &a.stride[i]
	off := a.batch.Convert(dtype.Int64).Mul(st.Get(0)).Add(head.Convert(dtype.Int64).Mul(st.Get(1)))
	return a.at[i].Offset(off)
}

// tiles returns the number of tiles of the given size that cover n.
func (a *attentionKernel) tiles(n kernel.Value, size int) kernel.Value {
	return n.Add(a.k.I32(size - 1)).Div(a.k.I32(size))
}

// AttentionSpecs returns the specs of the kernels of attention for t, for tests.
func AttentionSpecs(t dtype.DType, causal bool) (all []Spec) {
	lim := &Limits{SharedPerBlock: 227 << 10, Major: 9}
	for _, width := range []int{8, 16, 32, 40, 64, 80, 128, 160, 256} {
		for _, long := range []int{64, 4096} {
			for stage := attentionForward; stage <= attentionKeys; stage++ {
				a := attention{opt: AttentionOpt{Causal: causal}, queries: long, keys: long, width: width, shared: 1 + long/4096}
				s := Spec{Family: FamilyAttention, Op: stage, Compute: t, Outs: 1, Ins: 1, Attention: a.spec(lim, stage)}
				s.DTypes[0], s.DTypes[1] = t, t
				if stage == attentionKeys && width > mostColumns {
					s.Attention.Piece = 1
					all = append(all, s)
					s.Attention.Piece = 2
				}
				all = append(all, s)
			}
		}
		for shared := 1; shared <= fewRows && !causal; shared *= 2 {
			for _, keys := range []int{64, 4096} {
				a := attention{batch: 1, heads: shared, shared: shared, queries: 1, keys: keys, width: width}
				few, _, _ := a.fewSpec()
				s := Spec{Family: FamilyAttention, Op: attentionFew, Compute: t, Outs: 1, Ins: 1, Attention: few}
				s.DTypes[0], s.DTypes[1] = t, t
				all = append(all, s)
			}
		}
	}
	return all
}

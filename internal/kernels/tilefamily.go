package kernels

var (
	_ = register(FamilyMatvec, buildMatvec)
	_ = register(FamilyMatmul, buildMatmul)
	_ = register(FamilyMatmulFinish, buildMatmulFinish)
	_ = register(FamilyConv, buildConv)
	_ = register(FamilySumPartials, buildSumPartials)
)

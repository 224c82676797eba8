package zoo

import "tenon.dev"

// following is the loss of language models: the mean cross-entropy of each logit but the last with the word that follows.
type following struct{}

func (following) Loss(x *tenon.Exec, out, target *tenon.Tensor) *tenon.Tensor {
	return x.Within(func(x *tenon.Exec) *tenon.Tensor {
		return classes{}.Loss(x, x.Narrow(out, 1, 0, out.Size(1)-1), target)
	})
}

// textInputs are texts and, as the target, the words of each but the first.
func textInputs(x *tenon.Exec, words, batch, size int) ([]*tenon.Tensor, *tenon.Tensor) {
	ids := ints(x, "ids", words, batch, size)
	return []*tenon.Tensor{ids}, x.Narrow(ids, 1, 1, size-1)
}

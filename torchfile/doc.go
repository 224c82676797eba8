// Package torchfile reads and writes the files of torch.save, .pt and .pth: tensors, and the dicts, lists and numbers around them. It
// must not depend on modules or optimizers, and never runs code that a file names: an object of a class becomes a value that describes
// it.
package torchfile

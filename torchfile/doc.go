// Package torchfile reads and writes the files of torch.save, .pt and .pth: tensors, and the dicts, lists and numbers around them.
// It may not know modules or optimizers, and never runs code that a file names: what needs a class to be read is a value that says so.
package torchfile

// Package memviz shows memory snapshots of Tenon and PyTorch as a web page, as one self-contained file and as text. It must not depend on
// devices or allocators: it works from the snapshot alone.
package memviz
